"""The key of the ledger's references: made once, for its owner alone, and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.domain.audit import CallNames
from app.domain.message import ToolCallPart
from app.errors import StartError
from app.store.files import secret_key


def test_it_is_made_once_and_kept(tmp_path: Path) -> None:
    made = secret_key(tmp_path)
    assert len(made) >= 32 and secret_key(tmp_path) == made
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


def test_one_that_is_given_is_used_and_must_be_long_enough(tmp_path: Path) -> None:
    assert secret_key(tmp_path, "x" * 40) == b"x" * 40
    assert not list(tmp_path.iterdir())
    with pytest.raises(StartError, match="at least 16"):
        secret_key(tmp_path, "short")


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("cut")
    with pytest.raises(StartError, match="damaged"):
        secret_key(tmp_path)
    (tmp_path / "secret.key").unlink()
    (tmp_path / "secret.key").mkdir()
    with pytest.raises(StartError, match="cannot be used"):
        secret_key(tmp_path)


def test_references_differ_by_call_and_key_and_name_only_tools_that_exist() -> None:
    one, other = CallNames(b"k" * 32, frozenset({"read"})), CallNames(b"j" * 32, frozenset())
    call, same_id = ToolCallPart("c1", "read", "{}"), ToolCallPart("c1", "made up", "{}")
    assert one.of(call).ref == one.of(same_id).ref != other.of(call).ref
    assert one.of(call).ref != one.of(ToolCallPart("c2", "read", "{}")).ref and "c1" not in one.of(call).ref
    assert (one.of(call).tool_name, one.of(same_id).tool_name) == ("read", None)
