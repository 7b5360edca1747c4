//! From a commit to a user: redlock's home in one place, the release of a tag, and its installation from there.
//!
//! A web server and a `gh` that copies play GitHub. That GitHub runs the workflows isn't tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::generated::root;
use crate::promises::packages::{SMALL, assert_is_this_version, is_debian, package, run, text};
use crate::support::{
    Outcome, REDLOCK, Running, free_port, outcome, script, wait_until, without_terminal,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What stands in texts while redlock has no home.
const PLACEHOLDERS: [&str; 3] = [
    "example/redlock",
    "releases.example.com",
    "redlock@example.com",
];

/// A copy of this checkout, in which redlock may have another home.
struct Checkout {
    directory: TempDir,
}

impl Checkout {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let copy = r#"cd "$1" && tar --exclude=./target --exclude=./dist --exclude=./.git -cf - . | tar -C "$2" -xf -"#;
        run(&["sh", "-c", copy, "sh", text(root()), text(directory.path())]);
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// With a home on this server.
    fn at(server: &str) -> Self {
        let checkout = Self::new();
        let home = checkout.path().join("ci/home");
        let set = fs::read_to_string(&home).unwrap();
        let set = set
            .lines()
            .map(|line| match line.split_once('=') {
                Some(("repository", _)) => "repository=acme/redlock".to_owned(),
                _ => line.replace("=https://github.com", &format!("={server}")),
            })
            .collect::<Vec<_>>();
        fs::write(home, set.join("\n") + "\n").unwrap();
        checkout.script("home", &[]).assert_code(0);
        checkout
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Outcome {
        outcome(&mut self.command(name, arguments))
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path().join("scripts").join(name));
        command.args(arguments).current_dir(self.path());
        command
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path().join(file)).unwrap()
    }

    /// All files that users read or that tools take: not the code and its tests.
    fn files(&self) -> Vec<PathBuf> {
        let found = r#"cd "$1" && find *.md action.yml ci docs packaging skills .github Cargo.toml -type f"#;
        let found = run(&["sh", "-c", found, "sh", text(self.path())]).stdout;
        found.lines().map(PathBuf::from).collect()
    }
}

/// What `make dist` makes of a binary on a machine with this processor.
fn dist(checkout: &Checkout, binary: &Path, arch: &str) -> PathBuf {
    let to = checkout.path().join(format!("dist-{arch}"));
    let kinds: &[&str] = if is_debian() { &[] } else { &["tarball"] };
    let mut command = package(checkout.path(), binary, &to, kinds);
    command
        .env("ARCH", arch)
        .env("SOURCE_DATE_EPOCH", "1700000000");
    // Compressing takes as long as it takes.
    Outcome::from(command.output().unwrap()).assert_code(0);
    to
}

#[test]
fn all_that_names_the_home_or_the_version_is_generated() {
    let checkout = Checkout::new();
    checkout
        .script("home", &["--check"])
        .assert_code(0)
        .assert_silent();
    for (file, from, to) in [
        ("action.yml", "example/redlock@", "acme/redlock@"),
        ("ci/gitlab.yml", "checksum mismatch", "another checksum"),
        ("packaging/changelog", VERSION, "7.7.7"),
        ("ci/install.sh", VERSION, "7.7.7"),
    ] {
        let before = checkout.read(file);
        let changed = before.replace(from, to);
        assert_ne!(changed, before, "{file}");
        fs::write(checkout.path().join(file), changed).unwrap();
        let refused = checkout.script("home", &["--check"]);
        refused.assert_code(1).assert_says(file);
        assert!(refused.stderr.contains("`make generate`"), "{refused:?}");
        checkout.script("home", &[]).assert_code(0);
        assert_eq!(checkout.read(file), before);
    }
}

#[test]
fn without_a_home_the_installer_says_so() {
    let work = TempDir::new().unwrap();
    let checkout = Checkout::new();
    let home = checkout.read("ci/home");
    if !home.contains("\nrepository=\n") {
        return;
    }
    let mut install = Command::new("sh");
    install
        .arg(checkout.path().join("ci/install.sh"))
        .arg(work.path().join("prefix"))
        .env_remove("REDLOCK_RELEASES");
    outcome(&mut install)
        .assert_code(78)
        .assert_says("redlock has no public home yet; set REDLOCK_RELEASES");
    checkout
        .script("release", &["check", &format!("v{VERSION}")])
        .assert_code(78)
        .assert_says("redlock has no home");
}

#[test]
fn once_redlock_has_a_home_no_placeholder_remains() {
    let checkout = Checkout::at("https://github.com");
    checkout.script("home", &["--check"]).assert_code(0);
    for file in checkout.files() {
        let text = fs::read_to_string(checkout.path().join(&file)).unwrap();
        for placeholder in PLACEHOLDERS {
            assert!(!text.contains(placeholder), "{placeholder} in {file:?}");
        }
    }
    let readme = checkout.read("README.md");
    assert!(!readme.contains("no public home"), "{readme}");
    let refused = checkout.script("release", &["check", "v99.0.0"]);
    refused.assert_code(65).assert_says("v99.0.0");
    let tag = format!("v{VERSION}");
    checkout.script("release", &["check", &tag]).assert_code(0);
}

/// A web server that plays the page of releases; GitHub's client uploads to it.
struct Page {
    directory: TempDir,
    port: u16,
    server: Running,
}

impl Page {
    fn open() -> Self {
        let directory = TempDir::new().unwrap();
        let port = free_port();
        let mut server = Command::new("python3");
        server
            .args([
                "-m",
                "http.server",
                "--bind",
                "127.0.0.1",
                &port.to_string(),
            ])
            .current_dir(directory.path())
            .stderr(Stdio::null());
        let server = Running::start(&mut server);
        wait_until("the server listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        fs::create_dir(directory.path().join("programs")).unwrap();
        let upload = r#"#!/bin/sh
set -e
[ "$1 $2" = "release create" ]
tag=$3
shift 3
while [ "${1#--}" != "$1" ]; do
    case $1 in --verify-tag) shift ;; *) shift 2 ;; esac
done
releases=$PAGE/acme/redlock/releases
mkdir -p "$releases/download/$tag" "$releases/latest"
cp "$@" "$releases/download/$tag"
ln -s "../download/$tag" "$releases/latest/download"
"#;
        script(&directory.path().join("programs"), "gh", upload);
        Self {
            directory,
            port,
            server,
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn close(mut self) {
        self.server.kill();
        self.server.finish();
    }

    /// Releases the tag of a clone, as the workflow does on two machines and a third. The other processor's binary
    /// is anything.
    fn release(&self, checkout: &Checkout) {
        let tag = format!("v{VERSION}");
        let commit = "git init -q . && git add -A && git commit -qm release && git tag \"$1\"";
        let mut git = Command::new("sh");
        git.args(["-c", commit, "sh", &tag])
            .current_dir(checkout.path());
        for role in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{role}_NAME"), "a")
                .env(format!("GIT_{role}_EMAIL"), "a@b");
        }
        outcome(&mut git).assert_code(0);
        checkout.script("release", &["check", &tag]).assert_code(0);
        let here = std::env::consts::ARCH;
        let other = if here == "x86_64" {
            "aarch64"
        } else {
            "x86_64"
        };
        let stripped = checkout.path().join("stripped");
        run(&[
            "strip",
            "-o",
            text(&stripped),
            text(&binary_under_test(checkout.path())),
        ]);
        let here = dist(checkout, &stripped, here);
        let alone = checkout.script("release", &["gather", text(&here), "half"]);
        alone.assert_code(65).assert_says("a tarball is missing");
        let other = dist(checkout, Path::new(SMALL), other);
        checkout
            .script("release", &["gather", text(&here), text(&other), "release"])
            .assert_code(0);
        let programs = self.directory.path().join("programs");
        let system = std::env::var("PATH").unwrap();
        let mut publish = checkout.command("release", &["publish", &tag, "release"]);
        publish
            .env("PATH", format!("{}:{system}", programs.display()))
            .env("PAGE", self.directory.path());
        outcome(&mut publish).assert_code(0);
    }
}

#[test]
fn a_tag_becomes_a_release_that_one_line_installs_from_its_home() {
    let page = Page::open();
    let checkout = Checkout::at(&page.url());
    page.release(&checkout);

    // All that was uploaded is in the list of checksums.
    let release = checkout.path().join("release");
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "--quiet", "SHA256SUMS"]);
    outcome(check.current_dir(&release)).assert_code(0);
    let listed = fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    for file in fs::read_dir(&release).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        assert!(
            name == "SHA256SUMS" || listed.contains(&format!("  {name}\n")),
            "{name}"
        );
    }

    let home = TempDir::new().unwrap();
    let install = |arguments: &str, variables: &[(&str, &str)]| {
        let line = format!(
            "curl -fsSL {}/acme/redlock/releases/latest/download/install.sh | sh{arguments}",
            page.url()
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .envs(variables.iter().copied());
        without_terminal(&mut command);
        outcome(&mut command)
    };
    let prefix = home.path().join("below");
    let to = format!(" -s -- {}", prefix.display());
    install(&to, &[])
        .assert_code(0)
        .assert_says(&format!("installed version {VERSION} as "));
    assert_is_this_version(&prefix.join("bin/redlock"));
    let version = format!("v{VERSION}");
    install(&to, &[("REDLOCK_VERSION", &version)]).assert_code(0);
    install(&to, &[("REDLOCK_VERSION", "99.0.0")])
        .assert_code(69)
        .assert_says("can't download SHA256SUMS");
    install(&to, &[("REDLOCK_VERSION", "1,e")]).assert_code(64);
    // Without a place of its own it takes one where this user may write.
    if !nix::unistd::geteuid().is_root() {
        install("", &[]).assert_code(0);
        assert_is_this_version(&home.path().join(".local/bin/redlock"));
    }
    let tarball = format!(
        "redlock-{VERSION}-{}-unknown-linux-musl.tar.gz",
        std::env::consts::ARCH
    );
    let uploaded = page
        .directory
        .path()
        .join("acme/redlock/releases/latest/download");
    fs::write(uploaded.join(tarball), "changed").unwrap();
    install(&to, &[])
        .assert_code(65)
        .assert_says("checksum mismatch");
    page.close();
}

/// The lines of all workflows that name another repository's action.
fn actions() -> Vec<String> {
    let workflows = fs::read_dir(root().join(".github/workflows")).unwrap();
    let texts = workflows.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.contains("uses:")).collect()
}

#[test]
fn each_action_of_a_workflow_is_pinned_to_a_commit_and_names_its_version() {
    let actions = actions();
    assert!(!actions.is_empty());
    for line in actions {
        let pinned = line
            .split_once('@')
            .and_then(|(_, pin)| pin.split_once(" # v"));
        let (commit, version) = pinned.unwrap_or_else(|| panic!("no commit and version: {line}"));
        let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_hash, "{line}");
        assert!(
            version.starts_with(|first: char| first.is_ascii_digit()),
            "{line}"
        );
    }
}

#[test]
fn the_archive_of_cargo_package_has_all_files_that_a_build_reads_and_no_test() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut list = Command::new(cargo);
    list.args([
        "package",
        "--list",
        "--allow-dirty",
        "--locked",
        "--offline",
    ])
    .current_dir(root());
    let listed = Outcome::from(list.output().unwrap());
    let listed: Vec<&str> = listed.assert_code(0).stdout.lines().collect();
    let tracked = run(&["git", "-C", text(root()), "ls-files"]).stdout;
    for file in tracked.lines() {
        let is_read = ["src/", "build/", "build.rs", "completions/", "Cargo.toml"]
            .iter()
            .any(|start| file.starts_with(start))
            || file.starts_with("man/redlock");
        let is_test = file.starts_with("tests/") || file.starts_with("benches/");
        assert!(
            !is_read || listed.contains(&file),
            "not in the archive: {file}"
        );
        assert!(
            !is_test || !listed.contains(&file),
            "in the archive: {file}"
        );
    }
}

/// The binary that `make dist` has packaged, if that is under test.
fn binary_under_test(work: &Path) -> PathBuf {
    let Some(dist) = std::env::var_os("REDLOCK_DIST") else {
        return REDLOCK.into();
    };
    let unpack = "cd \"$1\" && tar --strip-components=2 -xzf \"$2\"/redlock-*-musl.tar.gz --wildcards '*/bin/redlock'";
    run(&[
        "sh",
        "-c",
        unpack,
        "sh",
        text(work),
        text(&root().join(dist)),
    ]);
    work.join("redlock")
}
