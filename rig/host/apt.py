"""A private view of a Debian archive: the machine's own apt sources with the suite exchanged.

The rig needs a newer kernel than the machine's suite has, without changing the machine. It reads
the machine's source entries, keeps mirror and signing key, exchanges the suite, and runs apt on
its own state folders. apt verifies the signatures; entries that switch verification off are cut.
"""

import re
import shutil
import subprocess
from pathlib import Path

from host.outcome import RigError, Waived

#: Options of a source entry that would weaken signature checks; never carried over.
UNSAFE_OPTIONS = {"trusted", "allow-insecure", "allow-weak", "allow-downgrade-to-insecure"}


def parse_sources(text, deb822):
    """The binary-package entries of one sources file, as dicts with lower-case keys.

    Keys: `uris`, `suites`, `components` (lists) and `options` (dict, for instance `signed-by`).
    Disabled entries, comments and source-package entries are left out.
    """
    return list(_parse_deb822(text) if deb822 else _parse_one_line(text))


def _parse_deb822(text):
    for paragraph in re.split(r"\n\s*\n", text):
        fields, key = {}, None
        for line in paragraph.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0].isspace():
                if key:
                    fields[key] += "\n" + line.strip()
                continue
            name, separator, value = line.partition(":")
            if separator:
                key = name.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        yield {
            "uris": fields.pop("uris", "").split(),
            "suites": fields.pop("suites", "").split(),
            "components": fields.pop("components", "").split(),
            "options": {k: v for k, v in fields.items() if k not in ("types", "enabled")},
        }


def _parse_one_line(text):
    entry = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>.*)$")
    for line in text.splitlines():
        match = entry.match(line.split("#", 1)[0].strip())
        if not match:
            continue
        pairs = (pair.partition("=") for pair in (match["options"] or "").split())
        yield {
            "uris": [match["uri"]],
            "suites": [match["suite"]],
            "components": match["components"].split(),
            "options": {name.lower(): value for name, _, value in pairs},
        }


def exchange_suite(entries, codename, suites):
    """deb822 text that offers `suites` from wherever `entries` offer `codename`; None if nowhere."""
    for entry in entries:
        if codename not in entry["suites"] or "main" not in entry["components"]:
            continue
        lines = [
            "Types: deb",
            "URIs: " + " ".join(entry["uris"]),
            "Suites: " + " ".join(suites),
            "Components: main",
        ]
        for name, value in entry["options"].items():
            if name not in UNSAFE_OPTIONS:
                lines.append(f"{name.title()}: " + value.replace("\n", "\n "))
        return "\n".join(lines) + "\n"
    return None


def codename_of(os_release):
    """The suite the machine runs, from the text of os-release; None when it does not say."""
    match = re.search(r'^VERSION_CODENAME="?([a-z0-9-]+)"?$', os_release, re.MULTILINE)
    return match[1] if match else None


def read_machine_sources(etc_apt=Path("/etc/apt")):
    entries = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.is_file() and path.suffix in (".list", ".sources"):
            entries += parse_sources(path.read_text(), deb822=path.suffix == ".sources")
    return entries


class Archive:
    """The derived archive: update its index, look packages up, download and unpack them."""

    def __init__(self, home, suites):
        self.home = Path(home)
        self.suites = suites
        self.settings = self.home / "apt.conf"

    def update(self):
        """Write the derived source list and fetch its index; Waived when there is none to derive."""
        if not shutil.which("apt-get"):
            raise Waived("no apt-get here; the rig takes its kernel from a Debian archive")
        release = Path("/etc/os-release")
        codename = codename_of(release.read_text()) if release.is_file() else None
        source = exchange_suite(read_machine_sources(), codename, self.suites) if codename else None
        if source is None:
            raise Waived(f"the apt sources here have no entry for suite {codename}, so none for {self.suites[0]}")
        parts = self.home / "sources"
        for folder in (parts, self.home / "state/lists/partial", self.home / "cache/archives/partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.home / "status").touch()
        (parts / "rig.sources").write_text(source)
        self._write_settings()
        done = subprocess.run(["apt-get", "-c", self.settings, "update"], capture_output=True, text=True)
        if done.returncode:
            raise Waived(f"apt-get update for {' '.join(self.suites)} failed: {_last_line(done.stderr)}")

    def names(self, prefix):
        return self._cache("pkgnames", prefix).split()

    def show(self, package):
        """Every version of `package` on offer, as a list of control-field dicts."""
        stanzas = re.split(r"\n\s*\n", self._cache("show", package).strip())
        return [dict(re.findall(r"^([A-Za-z-]+): (.*)$", stanza, re.MULTILINE)) for stanza in stanzas]

    def download(self, packages, into):
        """Fetch the .deb files of `packages` (names or `name=version`); returns their paths."""
        into.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "-c", self.settings, "download", *packages]
        done = subprocess.run(command, cwd=into, capture_output=True, text=True)
        if done.returncode:
            raise RigError(f"apt-get download {' '.join(packages)}: {_last_line(done.stderr)}")
        return sorted(into.glob("*.deb"))

    def _cache(self, *arguments):
        done = subprocess.run(["apt-cache", "-c", self.settings, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise RigError(f"apt-cache {' '.join(arguments)}: {_last_line(done.stderr)}")
        return done.stdout

    def _write_settings(self):
        settings = {
            "Dir::State": self.home / "state",
            "Dir::State::status": self.home / "status",
            "Dir::Cache": self.home / "cache",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.home / "sources",
            "APT::Sandbox::User": "",
        }
        # The machine's hooks act on the machine's own package state, which this archive never touches.
        hooks = ["APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success", "Acquire::IndexTargets::deb::DEP-11"]
        lines = [f'{name} "{value}";' for name, value in settings.items()] + [f"#clear {hook};" for hook in hooks]
        self.settings.write_text("\n".join(lines) + "\n")


def unpack(debs, root):
    root.mkdir(parents=True, exist_ok=True)
    for deb in debs:
        subprocess.run(["dpkg", "-x", deb, root], check=True)


def depends(stanza, prefix):
    """Names of the packages `stanza` depends on that start with `prefix`."""
    alternatives = re.split(r"[,|]", stanza.get("Depends", ""))
    names = (re.sub(r"\(.*?\)", "", item).strip() for item in alternatives)
    return [name for name in names if name.startswith(prefix)]


def _last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
