//! From a commit to a user: redlock's home in one place, the release of a tag, and its installation from there.
//!
//! A web server plays GitHub. Uploads and GitHub's workflows aren't tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::generated::root;
use crate::promises::packages::{Releases, assert_is_this_version, run, serve, text};
use crate::support::{Outcome, outcome, without_terminal};

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
        let mut command = Command::new(self.path().join("scripts").join(name));
        outcome(command.args(arguments).current_dir(self.path()))
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

#[test]
fn one_line_installs_a_release_from_its_home() {
    let page = TempDir::new().unwrap();
    let (_server, url) = serve(page.path());
    let checkout = Checkout::at(&url);
    let made = Releases::new();
    let of_one_processor = checkout.script("release", &["gather", text(&made.path), "half"]);
    of_one_processor
        .assert_code(65)
        .assert_says("a tarball is missing");
    let releases = page.path().join("acme/redlock/releases");
    let latest = releases.join("latest/download");
    fs::create_dir_all(&latest).unwrap();
    fs::create_dir(releases.join("download")).unwrap();
    let tag = releases.join(format!("download/v{VERSION}"));
    std::os::unix::fs::symlink("../latest/download", tag).unwrap();
    let tarball = made.tarball();
    let uploaded = latest.join(tarball.file_name().unwrap());
    fs::copy(&tarball, &uploaded).unwrap();
    fs::copy(made.path.join("SHA256SUMS"), latest.join("SHA256SUMS")).unwrap();
    let installer = checkout.path().join("ci/install.sh");
    fs::copy(installer, latest.join("install.sh")).unwrap();

    let home = TempDir::new().unwrap();
    let prefix = home.path().join("below");
    let install = |variables: &[(&str, &str)]| {
        let from = format!("{url}/acme/redlock/releases/latest/download/install.sh");
        let line = format!("curl -fsSL {from} | sh -s -- {}", prefix.display());
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
    let message = format!("installed version {VERSION} as ");
    install(&[]).assert_code(0).assert_says(&message);
    assert_is_this_version(&prefix.join("bin/redlock"));
    let version = format!("v{VERSION}");
    install(&[("REDLOCK_VERSION", &version)]).assert_code(0);
    let missing = install(&[("REDLOCK_VERSION", "99.0.0")]);
    missing
        .assert_code(69)
        .assert_says("can't download SHA256SUMS");
    install(&[("REDLOCK_VERSION", "1,e")]).assert_code(64);
    fs::write(uploaded, "changed").unwrap();
    install(&[])
        .assert_code(65)
        .assert_says("checksum mismatch");
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
