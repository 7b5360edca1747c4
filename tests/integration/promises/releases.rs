//! From a commit to a user: redlock's home in one file, the release of a tag, and its installation from there.
//!
//! A web server plays GitHub's part. Uploads and GitHub's workflows aren't tested.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::generated::root;
use crate::promises::packages::{Releases, assert_is_this_version, install, run, serve, text};
use crate::support::prelude::*;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Placeholders in texts while redlock has no home.
const PLACEHOLDERS: &str = "example/redlock releases.example.com redlock@example.com";

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

    /// Creates a copy with a home on this server.
    fn at(server: &str) -> Self {
        let checkout = Self::new();
        let home = checkout.path().join("ci/home");
        let set =
            format!("s|^repository=.*|repository=acme/redlock|; s|=https://github.com|={server}|g");
        run(&["sed", "-i", &set, text(&home)]);
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
}

#[test]
fn all_that_names_the_home_or_the_version_is_generated() {
    let checkout = Checkout::new();
    let checked = checkout.script("home", &["--check"]);
    checked.assert_code(0).assert_silent();
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
        refused.assert_said(1, file);
        assert!(refused.stderr.contains("`make generate`"), "{refused:?}");
        checkout.script("home", &[]).assert_code(0);
        assert_eq!(checkout.read(file), before);
    }
}

#[test]
fn without_a_home_the_installer_says_so() {
    let home = fs::read_to_string(root().join("ci/home")).unwrap();
    if !home.contains("\nrepository=\n") {
        return;
    }
    let work = TempDir::new().unwrap();
    let says = "redlock has no public home yet; set REDLOCK_RELEASES";
    let ended = install(&work.path().join("prefix"), &[]);
    ended.assert_said(78, says);
    let mut release = Command::new(root().join("scripts/release"));
    outcome(release.args(["check", &format!("v{VERSION}")])).assert_said(78, "redlock has no home");
}

#[test]
fn once_redlock_has_a_home_no_placeholder_remains() {
    let checkout = Checkout::at("https://github.com");
    checkout.script("home", &["--check"]).assert_code(0);
    // All files that users or tools read, except the code and its tests.
    let find =
        r#"cd "$1" && find *.md action.yml ci docs packaging skills .github Cargo.toml -type f"#;
    let files = run(&["sh", "-c", find, "sh", text(checkout.path())]).stdout;
    for file in files.lines() {
        let text = checkout.read(file);
        let placeholder = PLACEHOLDERS.split(' ').find(|&part| text.contains(part));
        assert_eq!(placeholder, None, "{file}");
    }
    let readme = checkout.read("README.md");
    assert!(!readme.contains("no public home"), "{readme}");
    let refused = checkout.script("release", &["check", "v99.0.0"]);
    refused.assert_said(65, "v99.0.0");
    let tag = format!("v{VERSION}");
    checkout.script("release", &["check", &tag]).assert_code(0);
}

#[test]
fn one_line_installs_a_release_from_its_home() {
    let page = TempDir::new().unwrap();
    let (_server, url) = serve(page.path());
    let checkout = Checkout::at(&url);
    let made = Releases::new();
    let half = checkout.script("release", &["gather", text(&made.path), "half"]);
    half.assert_said(65, "a tarball is missing");
    let uploaded = made.copy();
    let installer = checkout.path().join("ci/install.sh");
    fs::copy(installer, uploaded.path.join("install.sh")).unwrap();
    for link in ["latest/download", &format!("download/v{VERSION}")] {
        let link = page.path().join("acme/redlock/releases").join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&uploaded.path, link).unwrap();
    }

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
    install(&[]).assert_said(0, &message);
    assert_is_this_version(&prefix.join("bin/redlock"));
    let version = format!("v{VERSION}");
    install(&[("REDLOCK_VERSION", &version)]).assert_code(0);
    install(&[("REDLOCK_VERSION", "1,e")]).assert_code(64);
}

#[test]
fn each_action_of_a_workflow_is_pinned_to_a_commit_and_names_its_version() {
    let workflows = root().join(".github/workflows");
    let actions = run(&["grep", "-rh", "uses:", text(&workflows)]).stdout;
    for line in actions.lines() {
        let (_, pin) = line.split_once('@').expect(line);
        let (commit, version) = pin.split_once(" # v").expect(line);
        let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_version = version.starts_with(|first: char| first.is_ascii_digit());
        assert!(is_hash && is_version, "{line}");
    }
}

#[test]
fn the_archive_of_cargo_package_has_all_files_that_a_build_reads_and_no_test() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut list = Command::new(cargo);
    list.args(words!("package --list --allow-dirty --locked --offline"));
    let listed = Outcome::from(list.current_dir(root()).output().unwrap());
    let listed: Vec<&str> = listed.assert_code(0).stdout.lines().collect();
    let tracked = run(&["git", "-C", text(root()), "ls-files"]).stdout;
    let read = "src/ build/ build.rs completions/ Cargo.toml man/redlock";
    for file in tracked.lines() {
        let begins = |starts: &str| starts.split(' ').any(|start| file.starts_with(start));
        let is_listed = listed.contains(&file);
        assert!(!begins(read) || is_listed, "not in the archive: {file}");
        let is_test = begins("tests/ benches/");
        assert!(!is_test || !is_listed, "in the archive: {file}");
    }
}
