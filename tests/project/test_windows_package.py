"""The Windows packages: the permitted content, the zip, the MSI's tables, and the workflow that builds them."""

from __future__ import annotations

import re
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Final

import pytest

from deploy.windows import NAME, PROGRAM, STEM, archive, build, folder, msi
from exporter.text.values import InvalidValue, split_address
from tests.support.peers import need

ROOT: Final = Path(__file__).parents[2]
SIGNED: Final = b"\x30\x82" + b"CN=Python Software Foundation"


def binary(*, machine: int = folder.AMD64, signature: bytes = b"", kind: int = 0x20B) -> bytes:
    """Return the headers of a program or library for Windows, and its signature [PE Format]."""
    head = bytearray(512)
    head[:2] = b"MZ"
    struct.pack_into("<I", head, 0x3C, 64)
    head[64:68] = b"PE\0\0"
    struct.pack_into("<H", head, 68, machine)
    struct.pack_into("<H", head, 88, kind)
    struct.pack_into("<I", head, 88 + 108, 16)
    struct.pack_into("<II", head, 88 + 112 + 8 * 4, len(head), len(signature))
    return bytes(head) + signature


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Create a small folder in the form that the build leaves."""
    place = tmp_path / NAME
    inside = place / "_internal"
    (inside / "certifi").mkdir(parents=True)
    (place / PROGRAM).write_bytes(binary())
    (inside / "python3.dll").write_bytes(binary(signature=SIGNED))
    (inside / "python313.dll").write_bytes(binary(signature=SIGNED))
    (inside / "_ssl.pyd").write_bytes(binary())
    (inside / "certifi" / "cacert & more.pem").write_text("certificates")
    (inside / "certifi" / "empty").touch()
    return place


# -- the folder


def test_a_build_with_python_from_python_org_is_accepted(made: Path) -> None:
    """A folder with a Python that is signed by the Python Software Foundation is accepted."""
    assert list(folder.faults(made)) == []
    assert folder.main([str(made)]) == 0


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("_internal/python3.dll", binary(), "not from python.org: no signature"),
        ("_internal/python313.dll", binary(signature=b"\x30\x82CN=Somebody"), "not from python.org: no signature"),
        ("_internal/PYTHON3.DLL", binary(), "not from python.org: no signature"),
        ("_internal/bcryptprimitives.dll", binary(signature=SIGNED), "part of Windows, or a replacement for one"),
        ("_internal/api-ms-win-crt-heap-l1-1-0.dll", binary(), "part of Windows, or a replacement for one"),
        ("_internal/_ssl.pyd", binary(machine=0x14C), "built for another machine (0x014c)"),
        ("_internal/_ssl.pyd", binary(kind=0x10B), "not a 64-bit image"),
        ("_internal/_ssl.pyd", b"MZ", "the headers are truncated"),
        ("_internal/_ssl.pyd", b"#!" + binary()[2:], "not a 64-bit image"),
    ],
)
def test_a_build_for_wine_is_rejected(
    made: Path, name: str, content: bytes, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries that run only under Wine, and broken ones, are named; then there is no zip."""
    (made / name).write_bytes(content)
    assert [found.lower().startswith(f"{name}: {fault}".lower()) for found in folder.faults(made)] == [True]
    assert folder.main([str(made)]) == 1
    assert archive.main([str(made)]) == 1
    assert fault in capsys.readouterr().err


def test_a_folder_without_the_program_or_python_is_rejected(tmp_path: Path) -> None:
    """An empty folder is no build."""
    assert list(folder.faults(tmp_path)) == [
        f"{PROGRAM}: missing",
        "python3NN.dll: missing, so there is no Python",
    ]


def test_the_recipe_omits_parts_of_windows() -> None:
    """With a JDK on the build machine's PATH, PyInstaller would pack parts of Windows from there: then there is no
    zip."""
    recipe = (ROOT / "deploy" / "standalone.spec").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'PART_OF_WINDOWS = re.compile\(r"(.+)", re.IGNORECASE\)', recipe)
    for name in ("ucrtbase.dll", "api-ms-win-crt-heap-l1-1-0.dll", r"sub\UCRTBASE.dll"):
        assert re.fullmatch(pattern, name, re.IGNORECASE), name
    for name in ("vcruntime140.dll", "python313.dll", "_ssl.pyd", "ucrtbase.dll.so"):
        assert not re.fullmatch(pattern, name, re.IGNORECASE), name


# -- the zip


def test_one_folder_makes_one_zip(made: Path, tmp_path: Path) -> None:
    """Byte for byte the same, with the licence and a short text file, all in one folder."""
    archive.pack(made, tmp_path / "one.zip")
    archive.pack(made, tmp_path / "other.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as found:
        names = found.namelist()
        assert names == sorted(names)
        assert found.read(f"{NAME}/{PROGRAM}") == (made / PROGRAM).read_bytes()
        assert b"MIT License\r\n" in found.read(f"{NAME}/LICENSE.txt")
        assert b"service install\r\n" in found.read(f"{NAME}/README.txt")
    files = {f"{NAME}/{path.relative_to(made).as_posix()}" for path in made.rglob("*") if path.is_file()}
    assert set(names) == files | {f"{NAME}/LICENSE.txt", f"{NAME}/README.txt"}


def test_the_folder_is_built_of_locked_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """It installs only wheels with hashes, and the project's own code with a locked builder; it's tested before it is
    packed; on Windows only."""
    python = Path("python.exe")
    for command in build.installs(python):
        line = " ".join(command)
        assert "--require-hashes --only-binary :all:" in line or "--no-deps --no-build-isolation ." in line
        assert all((ROOT / word).is_file() for word in command if word.startswith("deploy/"))
    assert (ROOT / "deploy" / "standalone.spec").as_posix() == Path(build.builds(python)[-1]).as_posix()
    assert [command[1] for command in build.tries(Path())] == ["--version", "service", "demo"]
    assert "CN=Python Software Foundation" in " ".join(build.verifies(Path()))
    assert build.main("linux") == 2
    assert "needs Windows with a CPython" in capsys.readouterr().err


# -- the MSI


def test_a_file_keeps_its_identity_from_version_to_version(made: Path) -> None:
    """The list of files depends only on their paths: an upgrade recognizes the components of the previous version."""
    before = msi.fragment(made)
    (made / "_internal" / "_ssl.pyd").write_bytes(binary() + b"newer")
    assert msi.fragment(made) == before
    guids = re.findall(r'Guid="([^"]+)"', before)
    assert len(guids) == len(set(guids)) == sum(path.is_file() for path in made.rglob("*"))
    (made / "_internal" / "another.pyd").write_bytes(binary())
    assert set(guids) < set(re.findall(r'Guid="([^"]+)"', msi.fragment(made)))


@pytest.mark.parametrize("version", ["1.0rc1", "1.0", "1.2.3.4", "1.2.3.dev1", "1.2.100000", ""])
def test_only_a_release_gets_an_msi(version: str) -> None:
    """Windows Installer compares three numbers: a version that it could not tell apart is rejected."""
    with pytest.raises(ValueError, match="an MSI needs a version of three numbers"):
        msi.numeric(version)


def made_msi(made: Path, target: Path, version: str = "1.2.3") -> Path:
    for name in ("wixl", "msibuild", "msiinfo", "msiextract"):
        need(name)
    msi.build(made, target, version=version)
    return target


def table(path: Path, name: str) -> dict[str, list[str]]:
    """Return a table's rows by their first column."""
    return {row[0]: row[1:] for row in msi.rows(path, name)}


@pytest.mark.peer("wixl")
def test_the_msi_holds_the_folder(made: Path, tmp_path: Path) -> None:
    """It contains every file of the folder unchanged, below Program Files; msitools unpack the same."""
    path = made_msi(made, tmp_path / "made.msi")
    files = {found.relative_to(made): found.read_bytes() for found in made.rglob("*") if found.is_file()}
    assert len(msi.rows(path, "File")) == len(files)
    subprocess.run(["msiextract", "--directory", str(tmp_path / "out"), str(path)], check=True, capture_output=True)
    (top,) = (tmp_path / "out").rglob(PROGRAM)
    assert top.parent.name == NAME
    assert top.parent.parent.name in ("PFiles", "Program Files")
    out = {found.relative_to(top.parent): found.read_bytes() for found in top.parent.rglob("*") if found.is_file()}
    assert out == files
    assert table(path, "Directory")["ProgramFolder"] == ["ProgramFiles64Folder", NAME]


@pytest.mark.peer("wixl")
def test_the_msi_is_one_product_in_versions(made: Path, tmp_path: Path) -> None:
    """UpgradeCode stays, the other codes change with the version; older ones are replaced, newer ones rejected."""
    one, other = (made_msi(made, tmp_path / f"{version}.msi", version) for version in ("1.2.3", "1.2.4"))
    first, second = table(one, "Property"), table(other, "Property")
    assert first["UpgradeCode"] == second["UpgradeCode"] == ["{E5C1BA32-5C96-4B93-905E-F4F6C5CA4D60}"]
    assert first["ProductCode"] != second["ProductCode"]
    assert (first["ProductVersion"], first["ALLUSERS"]) == (["1.2.3"], ["1"])
    components = [{row[1] for row in msi.rows(path, "Component")} for path in (one, other)]
    assert components[0] == components[1]
    assert {tuple(row) for row in msi.rows(one, "Upgrade")} == {
        (first["UpgradeCode"][0], "", "1.2.3", "", "1", "", "WIX_UPGRADE_DETECTED"),
        (first["UpgradeCode"][0], "1.2.3", "", "", "2", "", "WIX_DOWNGRADE_DETECTED"),
    }
    assert first["REINSTALLMODE"] == ["amus"], "a library that seems newer would be missing after an upgrade"
    ((condition, sentence),) = msi.rows(one, "LaunchCondition")
    assert condition == "NOT WIX_DOWNGRADE_DETECTED"
    assert "A later version" in sentence
    summaries = [msi.run("msiinfo", "suminfo", str(path)) for path in (one, other, made_msi(made, tmp_path / "again"))]
    assert all("Template: x64;1033" in summary for summary in summaries)
    codes = [re.findall(r"^Revision number \(UUID\): (\S+)", summary, re.MULTILINE) for summary in summaries]
    assert codes[0] == codes[2] != codes[1]


DEFERRED: Final = 0x400
ROLLBACK: Final = 0x100
AS_SYSTEM: Final = 0x800
GOES_ON: Final = 0x40


@pytest.mark.peer("wixl")
def test_the_msi_creates_and_removes_the_service_with_the_program(made: Path, tmp_path: Path) -> None:
    """As SYSTEM and within the transaction; each action has its rollback before it; no rollback can fail."""
    path = made_msi(made, tmp_path / "made.msi")
    actions = {name: (int(row[0]), row[1], row[2]) for name, row in table(path, "CustomAction").items()}
    changing = {name: action for name, action in actions.items() if action[0] & DEFERRED}
    assert all(kind & AS_SYSTEM for kind, _, _ in changing.values())
    order = {name: (row[0], int(row[1])) for name, row in table(path, "InstallExecuteSequence").items()}
    assert set(actions) <= set(order)
    for name, (kind, _, _) in changing.items():
        assert bool(kind & ROLLBACK) is name.endswith("Back")
        assert not name.endswith("Back") or kind & GOES_ON
        assert order["InstallInitialize"][1] < order[name][1] < order["InstallFinalize"][1]
    undone = {"InstallService", "RemoveService", "AddRule", "DeleteRule"}
    assert all(order[f"{name}Back"][1] < order[name][1] for name in undone)
    assert order["UpgradeServiceBack"][1] < order["InstallService"][1]
    assert actions["InstallService"][1:] == ("Program", "service install [ConfigFlag] [ListenFlag] [EXTRA_FLAGS]")
    assert not actions["InstallService"][0] & GOES_ON
    assert actions["RemoveService"][1:] == ("Program", "service remove")
    assert order["RemoveService"][0] == 'REMOVE="ALL" AND NOT UPGRADINGPRODUCTCODE'
    steps = ("StopServices", "RemoveService", "RemoveFiles", "InstallFiles", "InstallService", "StartServices")
    assert [order[name][1] for name in steps] == sorted(order[name][1] for name in steps)
    assert order["InstallInitialize"][1] < order["RemoveExistingProducts"][1] < order["StopServices"][1]
    (service,) = msi.rows(path, "ServiceControl")
    install_start, install_stop, uninstall_stop = 1, 2, 32
    assert (service[1], int(service[2])) == (NAME, install_start | install_stop | uninstall_stop)
    assert msi.rows(path, "ServiceInstall") == []


@pytest.mark.peer("wixl")
def test_the_properties_of_the_msi_are_remembered(made: Path, tmp_path: Path) -> None:
    """Each property reaches an elevated installer, is written to the registry, and is read there by the next version,
    unless it is given again; only given ones become flags."""
    path = made_msi(made, tmp_path / "made.msi")
    secure = set(table(path, "Property")["SecureCustomProperties"][0].split(";"))
    assert secure >= {*msi.PROPERTIES, *msi.DETECTED}
    written = {row[3]: row[4] for row in msi.rows(path, "Registry")}
    searched = {row[0]: row[1] for row in msi.rows(path, "AppSearch")}
    places = {row[0]: row[2:4] for row in msi.rows(path, "RegLocator")}
    conditions = {name: row[0] for name, row in table(path, "InstallExecuteSequence").items()}
    kept = {row[2]: (row[0], row[3]) for row in msi.rows(path, "CustomAction") if row[0].startswith("Keep")}
    for name in msi.PROPERTIES:
        assert written[name] == f"[{name}]"
        assert places[searched[f"REMEMBERED_{name}"]] == [f"SOFTWARE\\{NAME}", name]
        action, value = kept[name]
        assert value == f"[REMEMBERED_{name}]"
        assert conditions[action] == f"REMEMBERED_{name} AND NOT {name}"
        assert name not in table(path, "Property")
    assert (conditions["SetListenFlag"], conditions["SetConfigFlag"]) == ("LISTEN_ADDR", "CONFIG_FILE")


@pytest.mark.peer("wixl")
def test_an_ipv6_address_gets_brackets_before_its_port(made: Path, tmp_path: Path) -> None:
    """Both a given and a remembered one, and not a second time; the agent accepts it only in this form."""
    path = made_msi(made, tmp_path / "made.msi")
    assert table(path, "CustomAction")["BracketListenAddr"][1:3] == ["LISTEN_ADDR", r"[\[][LISTEN_ADDR][\]]"]
    sequence = table(path, "InstallExecuteSequence")
    assert sequence["BracketListenAddr"][0] == 'LISTEN_ADDR >< ":" AND NOT LISTEN_ADDR << "["'
    order = [
        int(sequence[name][1]) for name in ("KeepListenAddr", "SetListenAddr", "BracketListenAddr", "SetListenFlag")
    ]
    assert order == sorted(set(order))
    assert len({row[2] for row in msi.rows(path, "InstallExecuteSequence")}) == len(sequence), "no two at once"
    assert split_address("[::]:10169") == ("::", 10169)
    with pytest.raises(InvalidValue):
        split_address(":::10169")


@pytest.mark.peer("wixl")
def test_the_firewall_rule_is_an_option(made: Path, tmp_path: Path) -> None:
    """A separate feature that is installed only on request; its parent is always installed."""
    path = made_msi(made, tmp_path / "made.msi")
    features = table(path, "Feature")
    assert features["FirewallException"][0] == "DefaultFeature"
    assert [features[name][4] for name in ("DefaultFeature", "FirewallException")] == ["1", "2"]
    conditions = {name: row[0] for name, row in table(path, "InstallExecuteSequence").items()}
    assert conditions["AddRule"] == "&FirewallException=3"
    assert conditions["DeleteRule"] == "&FirewallException=2 OR &FirewallException=3"


@pytest.mark.peer("wixl")
def test_a_rollback_restores_the_firewall_rule(made: Path, tmp_path: Path) -> None:
    """This holds even if the rule was to be replaced: otherwise a wrong property for an installed version would close
    the port."""
    path = made_msi(made, tmp_path / "made.msi")
    conditions = {name: row[0] for name, row in table(path, "InstallExecuteSequence").items()}
    assert conditions["DeleteRuleBack"] == f"!FirewallException=3 AND ({conditions['DeleteRule']})"
    actions = table(path, "CustomAction")
    assert actions["DeleteRuleBack"][2] == actions["AddRule"][2].replace("[RemoteFlag]", "[OldRemoteFlag]")
    assert actions["SetOldRemoteFlag"][1:3] == ["OldRemoteFlag", "remoteip=[REMEMBERED_REMOTE_ADDR]"]
    assert conditions["SetOldRemoteFlag"] == "REMEMBERED_REMOTE_ADDR"


@pytest.mark.peer("wixl")
def test_an_msi_is_made_only_of_a_checked_zip(made: Path, tmp_path: Path) -> None:
    """The MSI is created next to its zip; a zip with a test-only part gives none."""
    need("wixl")
    source = tmp_path / f"{STEM}.zip"
    archive.pack(made, source)
    assert msi.main([str(source)]) == 0
    assert source.with_suffix(".msi").exists()
    (made / "_internal" / "bcryptprimitives.dll").write_bytes(binary())
    archive.pack(made, refused := tmp_path / "refused.zip")
    assert msi.main([str(refused)]) == 1
    assert not refused.with_suffix(".msi").exists()
