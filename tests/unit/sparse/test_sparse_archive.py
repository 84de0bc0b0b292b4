"""Packed files: what is read, and what is refused; nothing is extracted."""

import gzip
import io
import tarfile

import pytest

from sparloom.sparse import read_matrix, write_matrix

SMALL = b"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 3\n"
OTHER = b"%%MatrixMarket matrix array real general\n1 1\n9\n"


def member(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, io.BytesIO(content)


def archive(path, *members, form=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w:gz", format=form) as tar:
        for info, content in members:
            tar.addfile(info, content)
    return path


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("members", [
    {"m/m_b.mtx": OTHER, "m/m.mtx": SMALL, "m/z.mtx": OTHER},
    {"old/README": b"text" * 200, f"{'long/' * 24}mätrix.mtx": SMALL},
    {"._m.mtx": b"\0\5\x16\7", "m.mtx": SMALL}, {"./m.mtx": SMALL, "./._m.mtx": b"\0\5\x16\7"},
    {"__MACOSX/m/m.mtx": b"\0\5\x16\7", "m/m.mtx": SMALL},
], ids=["named like the archive", "the only one", "macOS before", "macOS behind", "macOS folder"])
def test_the_matrix_of_an_archive_is_read(tmp_path, members, form):
    folder = member("m/", type=tarfile.DIRTYPE)
    path = archive(tmp_path / "m.tar.gz", folder, *(member(*each) for each in members.items()), form=form)
    assert read_matrix(path).to_scipy().toarray().tolist() == [[0, 3], [0, 0]]


@pytest.mark.parametrize(("members", "message"), [
    ([member("a.mtx", SMALL), member("b.mtx", SMALL)], r"2 matrices \['a\.mtx', 'b\.mtx'\]: it must hold m/m\.mtx"),
    ([member("m/README", b"text")], r"0 matrices \[\]: it must hold m/m\.mtx, or one \.mtx file"),
    *[([member("m/m.mtx", SMALL), member(name, SMALL)], "member '.*' points outside the archive")
      for name in ("../m.mtx", "/m.mtx", "m/../../m.mtx", "..\\m.mtx", "../../.bashrc")],
    *[([member("m/m.mtx", type=kind, linkname="/etc/passwd")], r"member 'm/m\.mtx' is not a regular file")
      for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)],
    ([member("m/m.mtx", SMALL.replace(b"1 2 3", b"1 5 3"))], r"member 'm/m\.mtx': line 3: Column index out of bounds"),
    ([member("m/a\nb.mtx", b"")], r"member 'm/a\\nb\.mtx': line 1: '' is no MatrixMarket header"),
    ([member(f"{place}") for place in range(10_001)], r"refused archive \(more than 10000 members\)"),
])
def test_other_members_are_refused_and_nothing_is_written(tmp_path, members, message):
    inner = tmp_path / "inner"
    inner.mkdir()
    for _, content in members:
        content.seek(0)
    path = archive(inner / "m.tar.gz", *members)
    with pytest.raises(ValueError, match=rf"m\.tar\.gz: .*{message}"):
        read_matrix(path)
    assert [found.name for found in tmp_path.rglob("*")] == ["inner", "m.tar.gz"]


@pytest.mark.parametrize("ending", ["mtx", "mtx.gz", "tar.gz"])
def test_a_decompression_bomb_stops_at_the_limit(tmp_path, ending):
    path = tmp_path / f"m.{ending}"
    bomb = SMALL + b"\n" * 10_000_000
    if ending == "tar.gz":
        archive(path, member("m/README", bomb), member("m/m.mtx", SMALL))
    else:
        path.write_bytes(gzip.compress(bomb) if ending == "mtx.gz" else bomb)
    with pytest.raises(ValueError, match="unpacks to more than 1000000 bytes: raise limit_bytes"):
        read_matrix(path, limit_bytes=1_000_000)
    assert read_matrix(path).pattern.nnz == 1


def test_a_member_that_claims_too_many_bytes_is_refused(tmp_path):
    info, _ = member("m/m.mtx")
    for size in (1 << 40, 1000):
        info.size = size
        (tmp_path / "m.tar.gz").write_bytes(gzip.compress(info.tobuf()))
        with pytest.raises(ValueError, match=r"m\.tar\.gz: refused archive \(unexpected end of data\)"):
            read_matrix(tmp_path / "m.tar.gz")


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz"])
def test_truncation_and_flipped_bytes_are_detected(tmp_path, ending):
    path = tmp_path / f"m{ending}"
    (tmp_path / "whole.mtx").write_bytes(SMALL)
    write_matrix(path, read_matrix(tmp_path / "whole.mtx"))
    whole = path.read_bytes()
    for length in (0, 1, 9, 20, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"m{ending}: (damaged or truncated gzip|line 1: .* no MatrixMarket)"):
            read_matrix(path)
    for place in (len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1:])
        with pytest.raises(ValueError, match=rf"m{ending}: damaged or truncated gzip file .*: fetch it again"):
            read_matrix(path)


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz", ".tgz", ".mtx"])
def test_the_kind_of_a_file_is_recognised_by_its_bytes(tmp_path, ending):
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as tar:
        tar.addfile(*member("m/m.mtx", SMALL))
    parts = b"".join(gzip.compress(SMALL[place : place + 7]) for place in range(0, len(SMALL), 7)) + bytes(100)
    for content in (SMALL, gzip.compress(SMALL), plain.read_bytes(), gzip.compress(plain.read_bytes()), parts):
        (tmp_path / f"m{ending}").write_bytes(content)
        assert read_matrix(tmp_path / f"m{ending}").values.tolist() == [3]
