"""Archives: accepted and refused members; nothing is extracted."""

import bz2
import gzip
import io
import itertools
import lzma
import tarfile

import pytest

from sparloom.sparse import archive as archive_module
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


def test_the_member_named_like_the_archive_is_preferred(tmp_path):
    names = {"m/m_b.mtx": OTHER, "m/m.mtx": SMALL, "m/z.mtx": OTHER}
    path = archive(tmp_path / "m.tar.gz", *(member(name, content) for name, content in names.items()))
    assert read_matrix(path).to_scipy().toarray().tolist() == [[0, 3], [0, 0]]


def test_a_single_matrix_of_another_name_is_read(tmp_path):
    folder = member("old/", type=tarfile.DIRTYPE)
    path = archive(tmp_path / "renamed.tgz", folder, member("old/README", b"text"), member("old/old.mtx", SMALL))
    assert read_matrix(path).pattern.nnz == 1


def test_several_matrices_without_the_expected_name_are_refused(tmp_path):
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
    with pytest.raises(ValueError, match=r"member 'm/m\.mtx' is not a regular file: refused"):
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


def test_a_member_that_claims_too_many_bytes_is_refused(tmp_path):
    info, _ = member("m/m.mtx")
    info.size = 1 << 40
    path = tmp_path / "m.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf()))
    with pytest.raises(ValueError, match=r"member 'm/m\.mtx' claims 1099511627776 bytes, more than 4294967296"):
        read_matrix(path)


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz"])
def test_truncation_is_detected(tmp_path, ending):
    path = tmp_path / f"m{ending}"
    (tmp_path / "whole.mtx").write_bytes(SMALL)
    write_matrix(path, read_matrix(tmp_path / "whole.mtx"))
    whole = path.read_bytes()
    for length in (0, 1, 9, 20, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged or truncated|no MatrixMarket header|no \.mtx member"):
            read_matrix(path)


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz"])
def test_a_flipped_byte_is_detected(tmp_path, ending):
    path = tmp_path / f"m{ending}"
    (tmp_path / "whole.mtx").write_bytes(SMALL)
    write_matrix(path, read_matrix(tmp_path / "whole.mtx"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"m{ending}: "):
        read_matrix(path)


def test_an_invalid_matrix_is_reported_with_its_member(tmp_path):
    path = archive(tmp_path / "m.tar.gz", member("m/m.mtx", SMALL.replace(b"1 2 3", b"1 5 3")))
    with pytest.raises(ValueError, match=r"m\.tar\.gz: member m/m\.mtx: line 3: column 5 is outside 1 to 2"):
        read_matrix(path)


def test_a_plain_tar_is_read_under_a_compressed_name(tmp_path):
    path = tmp_path / "m.tar.gz"
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ValueError, match="damaged or truncated archive"):
        read_matrix(path)


def packed(path, *blocks):
    """Write headers and contents as they are, each filled up to whole blocks."""
    path.write_bytes(gzip.compress(b"".join(block + bytes(-len(block) % 512) for block in blocks)))
    return path


def header(name, size=0, kind=tarfile.REGTYPE):
    """Make a header that claims a size."""
    info, _ = member(name, type=kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def record(key, value):
    """Make a pax record, whose length counts its own digits."""
    rest = f" {key}={value}\n"
    length = len(rest) + len(str(len(rest)))
    return f"{length + (len(str(length)) > len(str(len(rest))))}{rest}".encode()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("folder", ["m", "x" * 90, "/".join(["long"] * 30), "/".join(["longer"] * 200), "mätrix"])
def test_archives_of_every_format_are_read(tmp_path, form, folder):
    if form == tarfile.USTAR_FORMAT:
        folder = folder[:150]  # it has no longer names
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz", format=form, encoding="utf-8") as tar:
        for name, content in ((f"{folder}/README", b"text" * 200), (f"{folder}/k.mtx", SMALL)):
            tar.addfile(*member(name, content, mtime=1.5, uid=10**7 if form != tarfile.USTAR_FORMAT else 0))
    assert read_matrix(tmp_path / "m.tar.gz").values.tolist() == [3]


def test_other_encodings_of_member_sizes_are_read(tmp_path):
    info, _ = member("m.mtx", SMALL)
    large = bytearray(info.tobuf())
    large[124:136] = b"\x80" + len(SMALL).to_bytes(11, "big")
    large[148:156] = b"%06o\0 " % (sum(large[:148]) + sum(large[156:]) + 8 * 32)
    assert read_matrix(packed(tmp_path / "m.tar.gz", bytes(large), SMALL)).pattern.nnz == 1
    fields = record("size", len(SMALL)) + record("path", "q/m.mtx")
    path = packed(tmp_path / "m.tar.gz", header("x", len(fields), b"x"), fields, header("short"), SMALL)
    assert read_matrix(path).pattern.nnz == 1


@pytest.mark.parametrize("names", [("._m.mtx", "m.mtx"), ("m.mtx", "._m.mtx"), ("m/._m.mtx", "m/m.mtx"),
                                   ("__MACOSX/m/m.mtx", "m/m.mtx"), ("./._m.mtx", "./m.mtx")])
def test_macos_attribute_files_are_ignored(tmp_path, names):
    contents = {name: SMALL if name.endswith("m.mtx") and "._" not in name else b"\0\5\x16\7" for name in names}
    contents = {name: b"\0\5\x16\7" if "__MACOSX" in name else content for name, content in contents.items()}
    path = archive(tmp_path / "m.tar.gz", *(member(name, content) for name, content in contents.items()))
    assert read_matrix(path).values.tolist() == [3]


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz", ".tgz", ".mtx", ".npz"])
def test_the_kind_of_a_file_is_recognised_by_its_bytes(tmp_path, ending):
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as tar:
        tar.addfile(*member("m/m.mtx", SMALL))
    contents = [SMALL, gzip.compress(SMALL)]
    contents += [] if ending == ".npz" else [plain.read_bytes()]
    contents += [gzip.compress(plain.read_bytes())]
    for content in contents:
        (tmp_path / f"m{ending}").write_bytes(content)
        assert read_matrix(tmp_path / f"m{ending}").values.tolist() == [3]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("m.mtx.gz", b"PK\3\4rest", "a zip archive, whatever its name says"),
    ("m.tar.gz", b"PK\3\4rest", "a zip archive, whatever its name says"),
    ("m.mtx.gz", b"<html>404</html>", "not a matrix but a web page or XML: check the address"),
    ("m.mtx", b"\n <!DOCTYPE html>\n", r"not a matrix but a web page or XML: .* \(line 1: '<!DOCTYPE html>'\)"),
    ("m.mtx", b"version https://git-lfs.github.com/spec/v1\noid", r"git lfs pull \(line 1: 'version https://git-lfs\.github"),
    ("m.npz", b"<?xml", "not a matrix but a web page or XML: check the address"),
    ("m.tar.gz", lzma.compress(SMALL), "not a matrix but an xz file: unpack it"),
    ("m.mtx.gz", bz2.compress(SMALL), "not a matrix but a bzip2 file: unpack it"),
    ("m.npz", b"\x93NUMPY", "not a matrix but a dense NumPy array"),
    ("m.mtx", b"\xef\xbb\xbf" + SMALL, "not a matrix but text behind a byte order mark: save it without one"),
    ("m.mtx", SMALL.decode().encode("utf-16"), "not a matrix but text in UTF-16: save it as ASCII"),
    ("m.mtx.gz", gzip.compress(gzip.compress(SMALL, mtime=0), mtime=0),
     "not a matrix but a gzip file within another: unpack it once"),
    ("m.mtx.gz", b"row col\n1,2\n", r"gzip file, or something else .*: it begins with b'row col"),
    ("m.mtx.gz", b"row,col\n1,2\n", "but 'row,col': if it is a CSV file, write row, column and value in each line"),
    ("m.tgz", bytes(2000), r"archive, or something else .*: it begins with b'\\x00"),
    ("m.tar.gz", b"", r"damaged or truncated archive \(it holds b''\)"),
    ("m.tgz", gzip.compress(b"x" * 2000, mtime=0), r"damaged or truncated archive \(it holds b'xxx"),
    ("m.mtx", b"", "line 1: no MatrixMarket header"),
    ("m.mtx.gz", gzip.compress(SMALL, mtime=0) + b"rest", "damaged or truncated gzip file"),
])
def test_other_kinds_of_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_matrix(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert ("fetch it again" in str(caught.value)) == ("damaged" in message)  # where that may help


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "m.mtx").mkdir()
    with pytest.raises(IsADirectoryError, match=r"m\.mtx: a folder, not a file"):
        read_matrix(tmp_path / "m.mtx")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a" * 3000])
@pytest.mark.parametrize("content", [b"", b"%%MatrixMarket matrix array real general\n1 1\nx\n"])
def test_messages_are_one_short_line_for_any_member_name(tmp_path, name, content):
    fields = record("path", f"{name}.mtx")
    path = packed(tmp_path / "m.tar.gz", header("x", len(fields), b"x"), fields, header("y", len(content)), content)
    with pytest.raises(ValueError, match=r"m\.tar\.gz: member ") as caught:
        read_matrix(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_gzip_files_may_have_several_members_and_padding(tmp_path):
    parts = [gzip.compress(SMALL[place : place + 7]) for place in range(0, len(SMALL), 7)]
    (tmp_path / "m.mtx.gz").write_bytes(b"".join(parts[:3]) + bytes(40_000) + b"".join(parts[3:]) + bytes(3))
    assert read_matrix(tmp_path / "m.mtx.gz").values.tolist() == [3]
    (tmp_path / "m.mtx.gz").write_bytes(gzip.compress(b"") * 262_145)
    with pytest.raises(ValueError, match="more than 262144 gzip members"):
        read_matrix(tmp_path / "m.mtx.gz")


@pytest.mark.parametrize(("blocks", "message"), [
    ((header("x", 160_000, b"x"), b"9" * 160_000), "an invalid pax header"),
    ((header("x", 1 << 30, b"x"), b"9" * 1000), "a pax header of 1073741824 bytes, more than 1048576"),
    ((header("x", 1 << 30, b"g"),), "a pax header of 1073741824 bytes, more than 1048576"),
    ((header("x", 1 << 30, b"L"), b"a" * 5000), "a name of 1073741824 bytes, more than 1048576"),
    ((header("x", 1 << 30, b"K"),), "a name of 1073741824 bytes, more than 1048576"),
    ((header("x", 100_000, b"L"), b"a" * 100_000, header("y")), "a name of 100000 bytes"),
    ((header("x", 10_000, b"x"), record("path", "a" * 9985), header("y")), "a name of 9985 bytes"),
    ((header("x", 30, b"x"), b"99999999999999999999999 a=bcd\n", header("y")), "an invalid pax header"),
    ((header("x", 6, b"x"), b"0 a=b\n", header("y")), "an invalid pax header"),
    ((header("x", 12, b"x"), b"7 a=bcdefgh\n", header("y")), "an invalid pax header"),
    ((header("x", 12, b"x"), record("size", "1_0"), header("y")), "a size that is not a number"),
    ((header("x", 11, b"x"), record("size", "-9"), header("y")), "a size that is not a number"),
    ((header("x", 34, b"x"), record("size", "9" * 25), header("y")), "a size that is not a number"),
    ((header("x", 600, b"L") + b"a" * 600 + bytes(424),) * 10_001, "more than 10000 headers"),
    (tuple(header(f"{place}") for place in range(10_001)), "more than 10000 headers"),
    ((header("m.mtx", len(SMALL)), SMALL[:-3]), "it ends within member m.mtx"),
    ((header("m.mtx", 10**6), SMALL), "it ends within member m.mtx"),
    ((header("README", 10**6), SMALL), "it ends within member README"),
    ((header("x", 5000, b"x"), b"9"), "it ends within a header"),
    ((header("m.mtx", len(SMALL)), SMALL, b"rubbish" * 100), "a header is invalid"),
    ((header("m.mtx"), header("m.mtx")[:300]), "a header is invalid"),
], ids=itertools.count())
def test_sizes_in_headers_are_limited(tmp_path, blocks, message):
    content = b"".join(block + bytes(-len(block) % 512) for block in blocks[:-1]) + blocks[-1]
    (tmp_path / "m.tar.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=rf"m\.tar\.gz: damaged or truncated archive \({message}"):
        read_matrix(tmp_path / "m.tar.gz")


def test_a_header_of_digits_is_parsed_in_linear_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tarfile, "open", None)  # which looks for a number in all of them, from each on
    fields = record("comment", "9" * 900_000)
    blocks = (header("x", len(fields), b"x"), fields, header("README")) * 20
    path = packed(tmp_path / "m.tar.gz", *blocks, header("m.mtx", len(SMALL)), SMALL)
    assert read_matrix(path).values.tolist() == [3]


@pytest.mark.parametrize("kind", [b"S", b"0"])
def test_sparse_members_are_refused(tmp_path, kind):
    fields = record("GNU.sparse.major", 1)
    first = () if kind == b"S" else (header("x", len(fields), b"x"), fields)
    path = packed(tmp_path / "m.tar.gz", *first, header("m.mtx", len(SMALL), kind), SMALL)
    with pytest.raises(ValueError, match=r"member 'm\.mtx' is not a regular file: refused"):
        read_matrix(path)


@pytest.mark.parametrize("ending", [".mtx.gz", ".tar.gz"])
@pytest.mark.parametrize("fits", [True, False])
def test_large_contents_are_kept_only_within_the_limit(tmp_path, monkeypatch, ending, fits):
    monkeypatch.setattr(archive_module, "MAX_BUFFERED_BYTES", 1 << 20)
    largest, write = [0], io.BytesIO

    class Watched(write):
        def write(self, data):
            largest[0] = max(largest[0], self.tell() + len(data))
            return super().write(data)

    monkeypatch.setattr(archive_module.io, "BytesIO", Watched)
    text = SMALL + b" " * (3 << 20)
    path = tmp_path / f"m{ending}"
    rest = b"" if fits else bytes(1 << 20)
    if ending == ".mtx.gz":
        path.write_bytes(gzip.compress(text + rest))
    else:
        packed(path, header("README", 3), b"abc", header("m.mtx", len(text)), text, header("last", len(rest)), rest)
    limit = len(text) + 4096
    if fits:
        assert read_matrix(path, limit_bytes=limit).values.tolist() == [3]
        assert largest[0] == len(text)
    else:
        with pytest.raises(ValueError, match=f"unpacks to more than {limit} bytes"):
            read_matrix(path, limit_bytes=limit)
        assert largest[0] <= 1 << 20
