"""Archives: what is read, and what is refused, without anything being extracted."""

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


def archive(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, content)
    return path


def test_member_of_the_archives_name_is_taken_among_several(tmp_path):
    names = {"m/m_b.mtx": OTHER, "m/m.mtx": SMALL, "m/z.mtx": OTHER}
    path = archive(tmp_path / "m.tar.gz", *(member(name, content) for name, content in names.items()))
    assert read_matrix(path).to_scipy().toarray().tolist() == [[0, 3], [0, 0]]


def test_single_matrix_of_another_name_is_taken(tmp_path):
    folder = member("old/", type=tarfile.DIRTYPE)
    path = archive(tmp_path / "renamed.tgz", folder, member("old/README", b"text"), member("old/old.mtx", SMALL))
    assert read_matrix(path).pattern.nnz == 1


def test_several_matrices_without_a_main_one_are_refused(tmp_path):
    path = archive(tmp_path / "m.tar.gz", member("a.mtx", SMALL), member("b.mtx", SMALL))
    with pytest.raises(ValueError, match=r"the archive has 2 matrices \(a\.mtx, b\.mtx\): it must hold m/m\.mtx"):
        read_matrix(path)


def test_archive_without_a_matrix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the archive has no \.mtx member: it must hold m/m\.mtx"):
        read_matrix(archive(tmp_path / "m.tar.gz", member("m/README", b"text")))


@pytest.mark.parametrize("name", ["../m.mtx", "/m.mtx", "m/../../m.mtx", "..\\m.mtx", "../../.bashrc"])
def test_path_traversal_is_refused_and_nothing_is_written(tmp_path, name):
    inner = tmp_path / "inner"
    inner.mkdir()
    path = archive(inner / "m.tar.gz", member("m/m.mtx", SMALL), member(name, SMALL))
    with pytest.raises(ValueError, match=r"m\.tar\.gz: member '.*' points outside the archive: refused"):
        read_matrix(path)
    assert [found.name for found in tmp_path.rglob("*")] == ["inner", "m.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_matrix_that_is_a_link_is_refused(tmp_path, kind):
    link = member("m/m.mtx", type=kind, linkname="/etc/passwd")
    with pytest.raises(ValueError, match=r"member 'm/m\.mtx' is a link to '/etc/passwd': refused"):
        read_matrix(archive(tmp_path / "m.tar.gz", link))


def test_a_matrix_that_is_a_device_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"member 'm/m\.mtx' is no regular file: refused"):
        read_matrix(archive(tmp_path / "m.tar.gz", member("m/m.mtx", type=tarfile.FIFOTYPE)))


@pytest.mark.parametrize("ending", ["mtx.gz", "tar.gz"])
def test_a_decompression_bomb_stops_at_the_limit(tmp_path, ending):
    path = tmp_path / f"m.{ending}"
    bomb = SMALL + b" " * 10_000_000
    if ending == "mtx.gz":
        path.write_bytes(gzip.compress(bomb))
    else:
        archive(path, member("m/README", bomb), member("m/m.mtx", SMALL))
    with pytest.raises(ValueError, match=r"more than 1000000(:| bytes: )raise limit_bytes|more than 1000000: raise"):
        read_matrix(path, limit_bytes=1_000_000)
    assert read_matrix(path).pattern.nnz == 1


def test_a_member_that_claims_too_much_is_refused(tmp_path):
    info, _ = member("m/m.mtx")
    info.size = 1 << 40
    path = tmp_path / "m.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf()))
    with pytest.raises(ValueError, match=r"member 'm/m\.mtx' claims 1099511627776 bytes, more than 4294967296"):
        read_matrix(path)


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz"])
def test_every_kind_of_cut_is_noticed(tmp_path, ending):
    path = tmp_path / f"m{ending}"
    (tmp_path / "whole.mtx").write_bytes(SMALL)
    write_matrix(path, read_matrix(tmp_path / "whole.mtx"))
    whole = path.read_bytes()
    for length in (0, 1, 9, 20, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged or truncated|no MatrixMarket header|no \.mtx member"):
            read_matrix(path)


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz"])
def test_a_flipped_byte_is_noticed(tmp_path, ending):
    path = tmp_path / f"m{ending}"
    (tmp_path / "whole.mtx").write_bytes(SMALL)
    write_matrix(path, read_matrix(tmp_path / "whole.mtx"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"m{ending}: "):
        read_matrix(path)


def test_a_broken_matrix_is_reported_with_its_member(tmp_path):
    path = archive(tmp_path / "m.tar.gz", member("m/m.mtx", SMALL.replace(b"1 2 3", b"1 5 3")))
    with pytest.raises(ValueError, match=r"m\.tar\.gz: member m/m\.mtx: line 3: column 5 is outside 1 to 2"):
        read_matrix(path)


def test_a_plain_tar_is_not_taken_for_a_compressed_one(tmp_path):
    path = tmp_path / "m.tar.gz"
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ValueError, match="damaged or truncated archive"):
        read_matrix(path)
