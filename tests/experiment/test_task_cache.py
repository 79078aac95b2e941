"""The folder of cached tasks, while several processes use it."""

import shutil
from pathlib import Path

from fedclass.experiment.task_cache import TaskCache


def test_an_entry_that_another_process_has_removed_is_not_missed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000001.json").write_text("[]")
    cache = TaskCache(tmp_path)
    entries = list(cache.entries())
    assert [(entry.key, entry.made_with) for entry in sorted(entries, key=lambda e: e.key)] == [
        ("one", {}),
        ("other", {}),
    ]
    shutil.rmtree(tmp_path / "one")
    cache.remove(entries)
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_goes_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "one").mkdir()

    def gone(path: Path) -> object:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "iterdir", gone)
    assert list(TaskCache(tmp_path).entries()) == []
