"""Make the ``*_pb2.py`` and ``*_pb2.pyi`` modules from the ``.proto`` files beside this one.

Run ``make proto`` after a change. The compiler is an old one on purpose, in an environment of its own:
what it writes runs with every ``protobuf`` from 4.25 on, where new compilers demand the newest.
"""

from __future__ import annotations

import sys
from pathlib import Path

SCHEMAS = ("bookkeeper_protocol.proto", "data_formats.proto")


def main() -> int:
    """Run the compiler over all schemas; its exit code."""
    from grpc_tools import protoc  # not among our own requirements

    root = Path(__file__).parents[2]
    here = Path(__file__).parent.relative_to(root)
    arguments = ["protoc", f"--proto_path={root}", f"--python_out={root}", f"--pyi_out={root}"]
    code = int(protoc.main(arguments + [str(here / schema) for schema in SCHEMAS]))
    for stub in Path(__file__).parent.glob("*_pb2.pyi"):
        # The compiler writes a generic type without its arguments, which strict mypy does not take.
        stub.write_text(stub.read_text().replace("_Mapping]", "_Mapping[str, object]]"))
    return code


if __name__ == "__main__":
    sys.exit(main())
