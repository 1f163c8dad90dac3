"""The verification of whole namespaces: every replica of every entry, in parallel.

Inside: the report, the tasks, the run. Not inside: the check of a range of entries (``dlog``'s
``Namespace.repair.verify_entries``). Entry point: ``verify_logs``.
"""

from spark_integration.pipelines.verifying.report import VerificationSummary
from spark_integration.pipelines.verifying.verifier import verify_logs

__all__ = ["VerificationSummary", "verify_logs"]
