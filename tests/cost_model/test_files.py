"""Files appear whole or not at all, never over another where they must be new, and errors name what the user named."""

import errno
import os

import pytest

from cost_model import files
from cost_model.errors import BadInput
from cost_model.files import place_new, require_writable, write_text_whole, write_whole
from cost_model.measurement import RecordError, read_walk, walk_row, write_walk

ROW = walk_row(run_id="r", process_index=0, recorded_at_utc="2026-01-31T00:00:00Z", implementation="wts", probe="none", samples_us=[1.0])


def no_links(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


def disk_full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_is_named_as_the_user_named_it(tmp_path):
    with pytest.raises(BadInput) as caught:
        write_text_whole(tmp_path, "text")
    assert str(caught.value) == f"{tmp_path}: is a folder; give the name of a file" and list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(tmp_path / "settings.json", disk_full)
    assert caught.value.filename == str(tmp_path / "settings.json") and list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        write_text_whole(tmp_path / "file" / "out.json", "text")
    assert caught.value.filename == str(tmp_path / "file")


def test_a_full_disk_names_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_walk(tmp_path / "walk.parquet", [ROW])
    assert caught.value.filename == str(tmp_path / "walk.parquet") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_never_replaces_another(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    fresh, taken = tmp_path / ".part", tmp_path / "record"
    fresh.write_text("new")
    place_new(fresh, tmp_path / "free")
    assert (tmp_path / "free").read_text() == "new"
    fresh.write_text("new")
    taken.write_text("old")
    with pytest.raises(FileExistsError):
        place_new(fresh, taken)
    assert taken.read_text() == "old"


def test_a_record_is_written_where_there_are_no_links_and_refused_where_the_name_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    path = write_walk(tmp_path / "walk.parquet", [ROW])
    assert len(read_walk(path)) == 1 and [one.name for one in tmp_path.iterdir()] == ["walk.parquet"]
    monkeypatch.setattr(type(path), "exists", lambda self: False)
    with pytest.raises(RecordError, match="appeared while"):
        write_walk(path, [ROW, ROW])
    assert len(read_walk(path)) == 1


def test_a_claimed_name_is_given_back_when_the_move_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "replace", disk_full)
    (tmp_path / ".part").write_text("new")
    with pytest.raises(OSError):
        place_new(tmp_path / ".part", tmp_path / "record")
    assert not (tmp_path / "record").exists()


# --- before the work


@pytest.mark.parametrize("folder", [False, True])
def test_an_output_that_can_be_written_is_let_be_and_nothing_is_made(tmp_path, folder):
    require_writable(tmp_path / "new" / "newer" / "out", folder=folder)
    require_writable(None, folder=folder)
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_be_replaced_and_a_folder_used_again(tmp_path, monkeypatch):
    (tmp_path / "old.md").write_text("old")
    require_writable(tmp_path / "old.md")
    require_writable(tmp_path, folder=True)
    monkeypatch.chdir(tmp_path)
    require_writable("old.md")
    assert (tmp_path / "old.md").read_text() == "old"


def test_an_output_that_cannot_be_is_named_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for place in ("file", "gone"):
        out = tmp_path / place / "deep" / "out"
        for folder in (False, True):
            with pytest.raises(BadInput) as caught:
                require_writable(out, folder=folder)
            assert str(caught.value) == f"{out}: cannot be written, because {tmp_path / place} is no folder; give another place"
    with pytest.raises(BadInput, match="file: cannot be written, because .*file is no folder"):
        require_writable(tmp_path / "file", folder=True)
    with pytest.raises(BadInput, match="is a folder; give the name of a file"):
        require_writable(tmp_path)


def test_a_folder_that_takes_no_file_is_known_before(tmp_path, monkeypatch):
    def denied(dir):
        raise PermissionError(errno.EACCES, "Permission denied", f"{dir}/some-name")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", denied)
    with pytest.raises(BadInput, match=r"out.json: cannot be written \(Permission denied\); give another place, or see to it"):
        require_writable(tmp_path / "out.json")


def test_a_device_is_not_replaced_by_a_file():
    for check in (require_writable, lambda path: write_text_whole(path, "text")):
        with pytest.raises(BadInput, match=f"{os.devnull}: is a device, which a file would replace; give the name of a file"):
            check(os.devnull)
    assert not os.path.isfile(os.devnull)
