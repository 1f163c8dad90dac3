"""``make proto`` hands each schema to the compiler, and mends its stubs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledger.wire import regenerate


@pytest.mark.parametrize("code", [0, 1])
def test_each_schema_is_compiled_and_its_stub_has_types_that_mypy_accepts(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas = {each.name for each in Path(regenerate.__file__).parent.glob("*.proto")}
    wire = tmp_path / "ledger" / "wire"
    wire.mkdir(parents=True)
    compiled: set[str] = set()

    def compile_schemas(arguments: list[str]) -> int:
        assert f"--python_out={tmp_path}" in arguments
        compiled.update(Path(each).name for each in arguments if each.endswith(".proto"))
        (wire / "some_pb2.pyi").write_text("def f(x: _Union[A, _Mapping]) -> None: ...")
        return code

    compiler = SimpleNamespace(protoc=SimpleNamespace(main=compile_schemas))
    monkeypatch.setitem(sys.modules, "grpc_tools", compiler)
    monkeypatch.setattr(regenerate, "__file__", str(wire / "regenerate.py"))
    assert regenerate.main() == code
    assert compiled == schemas
    assert (wire / "some_pb2.pyi").read_text() == "def f(x: _Union[A, _Mapping[str, object]]) -> None: ..."
