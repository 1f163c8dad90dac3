"""Generates the ``*_pb2.py`` and ``*_pb2.pyi`` modules from the ``.proto`` files beside this module.

Run ``make proto`` after a change of a schema. It uses an old compiler in an environment of its own: the
output runs with every ``protobuf`` from 4.25 on, while that of newer compilers needs the newest version.
"""

from __future__ import annotations

import sys
from pathlib import Path

SCHEMAS = ("bookkeeper_protocol.proto", "data_formats.proto")


def main() -> int:
    """Compile all schemas; return the exit code of the compiler."""
    from grpc_tools import protoc  # not a dependency of this package

    root = Path(__file__).parents[2]
    here = Path(__file__).parent.relative_to(root)
    arguments = ["protoc", f"--proto_path={root}", f"--python_out={root}", f"--pyi_out={root}"]
    code = int(protoc.main(arguments + [str(here / schema) for schema in SCHEMAS]))
    for stub in Path(__file__).parent.glob("*_pb2.pyi"):
        # The compiler writes a generic type without arguments, which strict mypy rejects.
        stub.write_text(stub.read_text().replace("_Mapping]", "_Mapping[str, object]]"))
    return code


if __name__ == "__main__":
    sys.exit(main())
