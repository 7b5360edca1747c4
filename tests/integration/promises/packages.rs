//! The packages of `make dist` and their installation: tarball, .deb, the installer, and GitHub's action.
//!
//! `REDLOCK_DIST` names the directory that `make dist` has filled (`make dist-check` sets it). Without it the tests package the
//! binary under test, which isn't static: it runs with the libraries of this machine. `make dist-check` compares two builds.
//! The .deb is built and tested only on Debian and its derivatives. Not tested: the .rpm, the image, and the work of GitHub
//! itself, except the commands in a document.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;

use crate::generated::root;
use crate::pages::assert_links_lead_somewhere;
use crate::promises::recipes::yaml;
use crate::support::prelude::*;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A directory of releases, in the published layout.
pub struct Releases {
    pub path: PathBuf,
    // Deletes the packages of a test when dropped.
    _made: Option<TempDir>,
}

impl Releases {
    /// Returns the releases of `make dist` if they are under test. Otherwise packages the binary under test in these formats.
    fn with(kinds: &[&str]) -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        if let Some(path) = std::env::var_os("REDLOCK_DIST") {
            let path = root().join(path);
            return Self { path, _made: None };
        }
        let made = TempDir::new().unwrap();
        let stripped = made.path().join("stripped");
        run(&["strip", "-o", text(&stripped), REDLOCK]);
        let path = made.path().join("dist");
        let _turn = ONE_AT_A_TIME.lock().unwrap();
        let mut dist = Command::new(root().join("scripts/dist"));
        dist.args([&stripped, &path]).args(kinds);
        // Without a time limit, because compression may take long.
        dist.env_remove("SOURCE_DATE_EPOCH");
        let packaged = dist.env("DPKG_DEB_COMPRESSOR_LEVEL", "1").output().unwrap();
        Outcome::from(packaged).assert_code(0);
        Self {
            path,
            _made: Some(made),
        }
    }

    /// Returns releases with at least the tarball; concurrent tests share them.
    pub fn new() -> Arc<Self> {
        static SHARED: Mutex<Weak<Releases>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap();
        shared.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self::with(&["tarball"]));
            *shared = Arc::downgrade(&made);
            made
        })
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.path.display())
    }

    /// Returns the only file with this end of its name.
    fn file(&self, end: &str) -> PathBuf {
        let entries = fs::read_dir(&self.path).unwrap().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| text(file).ends_with(end));
        assert_eq!(files.len(), 1, "*{end}: {files:?}");
        files.remove(0)
    }

    pub fn tarball(&self) -> PathBuf {
        self.file(".tar.gz")
    }

    /// Copies the files that an installation uses, so that a test can change them.
    pub fn copy(&self) -> Self {
        let made = TempDir::new().unwrap();
        for file in [self.tarball(), self.path.join("SHA256SUMS")] {
            fs::copy(&file, made.path().join(file.file_name().unwrap())).unwrap();
        }
        Self {
            path: made.path().to_owned(),
            _made: Some(made),
        }
    }
}

/// Serves a directory over HTTP until the returned process is dropped. Returns the URL too.
pub fn serve(directory: &Path) -> (Running, String) {
    let port = free_port().to_string();
    let mut server = Command::new("python3");
    server
        .args(["-m", "http.server", "--bind", "127.0.0.1", &port])
        .current_dir(directory)
        .stderr(Stdio::null());
    let server = Running::start(&mut server);
    wait_until("the server listens", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    (server, format!("http://127.0.0.1:{port}"))
}

/// Runs a program with its arguments. Asserts that it succeeds.
pub fn run(words: &[&str]) -> Outcome {
    let ended = outcome(Command::new(words[0]).args(&words[1..]));
    ended.assert_code(0);
    ended
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn checksum(file: &Path) -> String {
    let line = run(&["sha256sum", text(file)]).stdout;
    line.split(' ').next().unwrap().to_owned()
}

/// Returns a command that runs as root, or in a user namespace that looks like it.
fn as_root(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    if !nix::unistd::geteuid().is_root() {
        command = Command::new("unshare");
        command.arg("-r").args(words);
    }
    command
}

pub fn assert_is_this_version(redlock: &Path) {
    let version = run(&[text(redlock), "--version"]).stdout;
    assert_eq!(version, format!("redlock {VERSION}\n"));
}

/// Asserts that the installed program has this version, and runs a command under a lock.
fn assert_works(redlock: &Path) {
    assert_is_this_version(redlock);
    let server = Redis::start();
    let script = "\"$0\" extend && echo \"$REDLOCK_NAME\"";
    let redlock = text(redlock);
    let held = words!("{} run a -- sh -c", redlock, script, redlock);
    outcome(&mut directly(&server, held)).assert_printed(0, "a\n");
}

/// Asserts that a packaged file, compressed or not, equals this file of the checkout.
fn assert_same(packaged: &Path, file: &Path) {
    let bytes = fs::read(packaged).unwrap_or_else(|_| {
        let compressed = format!("{}.gz", packaged.display());
        run(&["gzip", "-dc", &compressed]).stdout.into_bytes()
    });
    assert!(bytes == fs::read(file).unwrap(), "{}", packaged.display());
}

/// Asserts that the manual, the alerts, the dashboard, the README with its pages, and the completions are in their places.
fn assert_has_the_rest(share: &Path, zsh: &str) {
    for (of, end, there) in [
        ("man", ".1", "man/man1"),
        ("man", ".7", "man/man7"),
        ("docs/monitoring", "", "doc/redlock/monitoring"),
    ] {
        let entries = fs::read_dir(root().join(of)).unwrap().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| file.is_file() && text(file).ends_with(end));
        assert!(!files.is_empty(), "{of}");
        for file in files {
            let name = file.file_name().unwrap();
            assert_same(&share.join(there).join(name), &file);
        }
    }
    let pages = share.join("doc/redlock");
    assert!(assert_links_lead_somewhere(&pages.join("README.md")) > 10);
    for page in fs::read_dir(pages.join("docs")).unwrap().flatten() {
        let page = page.path();
        if page.extension().is_some_and(|end| end == "md") {
            assert_links_lead_somewhere(&page);
        }
    }
    for (file, there) in [
        ("redlock.bash", "bash-completion/completions/redlock"),
        ("redlock.fish", "fish/vendor_completions.d/redlock.fish"),
        ("_redlock", zsh),
    ] {
        assert_same(&share.join(there), &root().join("completions").join(file));
    }
}

#[test]
fn the_tarball_is_unpacked_below_a_prefix() {
    let releases = Releases::new();
    let tarball = releases.tarball();
    let prefix = TempDir::new().unwrap();
    let there = text(prefix.path());
    run(words!(
        "tar -C {} --strip-components=1 -xzf",
        there,
        text(&tarball)
    ));
    let redlock = prefix.path().join("bin/redlock");
    assert_works(&redlock);
    let built = run(&[text(&redlock), "--version", "-v"]).stdout;
    let is_of_make_dist = std::env::var_os("REDLOCK_DIST").is_some();
    assert!(built.contains("static") || !is_of_make_dist, "{built}");
    let share = prefix.path().join("share");
    assert_has_the_rest(&share, "zsh/site-functions/_redlock");
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let packaged = share.join("doc/redlock").join(licence);
        assert_same(&packaged, &root().join(licence));
    }
    // No directories: unpacking a directory would replace a link, and reset its owner and mode.
    let listed = run(words!("tar --numeric-owner -tvzf", text(&tarball))).stdout;
    for line in listed.lines() {
        let is_program = line.ends_with("/bin/redlock");
        let mode = if is_program { "rwxr-xr-x" } else { "rw-r--r--" };
        assert!(line[1..].starts_with(&format!("{mode} 0/0 ")), "{line}");
    }
}

#[test]
fn the_deb_is_installed_by_dpkg_with_man_pages_and_completions_in_debians_places() {
    return_unless!(Path::new("/etc/debian_version").exists());
    let releases = Releases::with(&["deb"]);
    let deb = releases.file(".deb");
    let field = |name: &str| {
        let shown = run(&["dpkg-deb", "--field", text(&deb), name]).stdout;
        shown.trim_end().to_owned()
    };
    assert_eq!(field("Package"), "redlock");
    assert!(field("Version").starts_with(VERSION));
    let here = run(&["dpkg", "--print-architecture"]).stdout;
    assert_eq!(field("Architecture"), here.trim());

    // A root directory of its own, in which nothing is installed.
    let system = TempDir::new().unwrap();
    let at = |path: &str| system.path().join(path);
    for directory in ["info", "updates"] {
        fs::create_dir_all(at("var/lib/dpkg").join(directory)).unwrap();
    }
    fs::write(at("var/lib/dpkg/status"), "").unwrap();
    let log = at("dpkg.log");
    let dpkg = |words: &[&str]| {
        let (dir, log) = (text(system.path()), text(&log));
        let options = words!(
            "dpkg --root={} --log={} --force-script-chrootless",
            dir,
            log
        );
        // dpkg in containers leaves the documentation out by default.
        let options = [options, &["--path-include=/usr/*"]].concat();
        outcome(&mut as_root(&[&options, words].concat()))
    };
    assert_eq!(field("Depends"), "");
    dpkg(&["--install", text(&deb)]).assert_code(0);

    assert_works(&at("usr/bin/redlock"));
    let share = at("usr/share");
    assert!(share.join("man/man1/redlock-run.1.gz").exists());
    assert_has_the_rest(&share, "zsh/vendor-completions/_redlock");
    let copyright = fs::read_to_string(share.join("doc/redlock/copyright")).unwrap();
    assert!(copyright.contains("MIT or Apache-2.0"), "{copyright}");
    let verified = dpkg(&["--verify", "redlock"]);
    verified.assert_printed(0, "");
    fs::write(share.join("doc/redlock/README.md"), "changed").unwrap();
    assert_ne!(dpkg(&["--verify", "redlock"]).stdout, "");
    dpkg(&["--remove", "redlock"]).assert_code(0);
    assert!(!at("usr/bin/redlock").exists());
}

/// Runs the installer with these variables.
pub fn install(prefix: &Path, variables: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new("sh");
    command
        .args([root().join("ci/install.sh").as_path(), prefix])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TMPDIR", prefix.parent().unwrap())
        .envs(variables.iter().copied());
    outcome(&mut command)
}

/// Asserts that a directory is empty.
fn assert_empty(directory: &Path) {
    let left: Vec<_> = fs::read_dir(directory).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_installer_installs_a_tarball_only_with_the_expected_checksum() {
    let releases = Releases::new();
    let work = TempDir::new().unwrap();
    let prefix = work.path().join("prefix");
    let right = checksum(&releases.tarball());
    let wrong = right.replace(|digit: char| digit.is_ascii_digit(), "a");
    let refused = |url: &str, checksum: &str, code: i32, why: &str| {
        let variables = [("REDLOCK_RELEASES", url), ("REDLOCK_SHA256", checksum)];
        let ended = install(&prefix, &variables);
        ended.assert_said(code, why);
        assert_empty(work.path());
    };
    refused(&releases.url(), &wrong, 65, "checksum mismatch");
    refused("file:///nowhere", "", 69, "can't download");

    let changed = releases.copy();
    let sums = changed.path.join("SHA256SUMS");
    let listed = fs::read_to_string(&sums).unwrap();
    fs::write(&sums, listed.replace(&right, &wrong)).unwrap();
    refused(&changed.url(), "", 65, &right);
    fs::write(&sums, "").unwrap();
    refused(&changed.url(), "", 65, "SHA256SUMS");
    fs::remove_file(&sums).unwrap();
    refused(&changed.url(), "", 69, "SHA256SUMS");

    // A given checksum is the only one that the installer trusts.
    let from = changed.url();
    let variables = [("REDLOCK_RELEASES", &*from), ("REDLOCK_SHA256", &right)];
    let installed = install(&prefix, &variables);
    let bin = format!("{}/bin", prefix.display());
    let start = format!("redlock: installed version {VERSION} as {bin}/redlock, ");
    let end = format!("\nredlock: {bin} isn't on your PATH: export PATH=\"{bin}:$PATH\"\n");
    let stderr = &installed.assert_code(0).stderr;
    let is_all = stderr.starts_with(&start) && stderr.ends_with(&end);
    assert!(is_all, "{installed:?}");
    assert_is_this_version(&prefix.join("bin/redlock"));
    fs::remove_dir_all(&prefix).unwrap();
    let capitals = right.to_uppercase();
    let variables = [variables[0], ("REDLOCK_SHA256", &capitals)];
    install(&prefix, &variables).assert_code(0);
    fs::remove_dir_all(&prefix).unwrap();

    let changed = releases.copy();
    let mut bytes = fs::read(changed.tarball()).unwrap();
    bytes.extend(b"more");
    fs::write(changed.tarball(), bytes).unwrap();
    refused(&changed.url(), "", 65, &right);
    refused(&changed.url(), &right, 65, &right);

    // The installer keeps a link that replaces a directory.
    for directory in ["own", "prefix"] {
        fs::create_dir(work.path().join(directory)).unwrap();
    }
    symlink("../own", prefix.join("bin")).unwrap();
    let installed = install(&prefix, &[("REDLOCK_RELEASES", &releases.url())]);
    installed.assert_said(0, "the checksum is right");
    assert!(prefix.join("bin").is_symlink());
    assert_is_this_version(&prefix.join("bin/redlock"));
}

#[test]
fn the_installer_never_says_the_password_of_a_url() {
    let work = TempDir::new().unwrap();
    let prefix = work.path().join("prefix");
    let host = format!("127.0.0.1:{}", free_port());
    for (url, shown) in [
        ("http://annie:s3@cr@HOST/dir/", "from http://HOST/dir\n"),
        ("http://annie:s3/cr@HOST/dir", "from http://HOST/dir\n"),
        ("http://s3cr@HOST", "from http://HOST\n"),
        ("file:///nowhere/@scope", "from file:///nowhere/@scope\n"),
    ] {
        let (url, shown) = (url.replace("HOST", &host), shown.replace("HOST", &host));
        let refused = install(&prefix, &[("REDLOCK_RELEASES", &url)]);
        refused.assert_said(69, &shown);
        for part in ["annie", "s3", "cr@"] {
            assert!(!refused.stderr.contains(part), "{refused:?}");
        }
    }
}

#[test]
fn the_installer_needs_curl_wget_or_busybox_alone() {
    let releases = Releases::new();
    let (_server, url) = serve(&releases.path);
    let find = |name: &str| {
        let mut sh = Command::new("sh");
        let path = outcome(sh.args(["-c", "command -v \"$0\"", name])).stdout;
        path.trim().to_owned()
    };
    for client in ["curl", "wget", "busybox"] {
        if find(client).is_empty() {
            continue;
        }
        let is_busybox = client == "busybox";
        let work = TempDir::new().unwrap();
        let programs = work.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let tools = "sh sed tar gzip uname mktemp sha256sum rm mkdir".split(' ');
        for name in tools.chain([if is_busybox { "wget" } else { client }]) {
            let target = find(if is_busybox { client } else { name });
            symlink(target, programs.join(name)).unwrap();
        }
        let prefix = work.path().join("prefix");
        let [path, from] = [("PATH", text(&programs)), ("REDLOCK_RELEASES", &url)];
        install(&prefix, &[path, from]).assert_code(0);
        assert_is_this_version(&prefix.join("bin/redlock"));
        for version in ["99.0.0", "v99.0.0"] {
            let refused = install(&prefix, &[path, from, ("REDLOCK_VERSION", version)]);
            refused.assert_said(69, "redlock-99.0.0-");
        }
    }
}

#[test]
fn an_installer_that_was_downloaded_in_part_does_nothing() {
    let releases = Releases::new();
    let work = TempDir::new().unwrap();
    let prefix = work.path().join("prefix");
    let script = fs::read_to_string(root().join("ci/install.sh")).unwrap();
    let run = |part: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", "printf %s \"$1\" | sh -s -- \"$2\"", "sh", part])
            .arg(&prefix)
            .env("REDLOCK_RELEASES", releases.url())
            .env("TMPDIR", work.path());
        outcome(&mut sh)
    };
    for (end, _) in script.trim_end().match_indices('\n') {
        run(&script[..end]);
        assert_empty(work.path());
    }
    run(&script).assert_code(0);
    assert!(prefix.join("bin/redlock").exists());
}

/// A GitHub job on a machine without redlock.
pub struct GithubJob<'a> {
    directory: &'a Path,
    variables: &'a [(&'a str, &'a str)],
}

impl<'a> GithubJob<'a> {
    /// Creates a job in this directory, with these variables.
    pub fn new(directory: &'a Path, variables: &'a [(&'a str, &'a str)]) -> Self {
        let job = Self {
            directory,
            variables,
        };
        fs::create_dir_all(job.temporary()).unwrap();
        fs::write(job.temporary().join("path"), "").unwrap();
        job
    }

    fn temporary(&self) -> PathBuf {
        self.directory.join("runner-temp")
    }

    /// Returns a step, run as GitHub runs it.
    fn step(&self, run: &str, variables: &[(&str, &str)]) -> Command {
        let temporary = self.temporary();
        let file = script(&temporary, "step.sh", run);
        let added = fs::read_to_string(temporary.join("path")).unwrap();
        // GitHub puts the latest addition first.
        let mut path = std::env::var("PATH").unwrap();
        for line in added.lines() {
            path = format!("{line}:{path}");
        }
        let mut command = Command::new("sh");
        command
            .arg("-e")
            .arg(file)
            .env_clear()
            .envs(self.variables.iter().chain(variables).copied())
            .env("PATH", path)
            .env("HOME", self.directory)
            .env("TMPDIR", &temporary)
            .env("RUNNER_TEMP", &temporary)
            .env("GITHUB_PATH", temporary.join("path"))
            .env("GITHUB_ACTION_PATH", root())
            .current_dir(self.directory);
        without_terminal(&mut command);
        command
    }

    /// Returns a step that uses this action, at the last of the action's own steps. Inputs have the values that GitHub would
    /// insert.
    pub fn uses(&self, with: &[(&str, &str)]) -> Command {
        let action = yaml(&fs::read_to_string(root().join("action.yml")).unwrap());
        let input = |name: &str| {
            let declared = &action["inputs"][name];
            assert!(declared.is_object(), "no input {name}");
            let given = with.iter().find(|(input, _)| *input == name);
            given.map_or(declared["default"].as_str().unwrap(), |(_, value)| *value)
        };
        for (name, _) in with {
            input(name);
        }
        let mut last: Option<Command> = None;
        for step in action["runs"]["steps"].as_array().unwrap() {
            match step["if"].as_str() {
                None => (),
                Some("inputs.run != ''") if input("run").is_empty() => continue,
                Some(condition) => assert_eq!(condition, "inputs.run != ''"),
            }
            if let Some(mut earlier) = last.take() {
                outcome(&mut earlier).assert_code(0);
            }
            let script = step["run"].as_str().unwrap();
            // GitHub pastes values into a script as code, so the script must not contain any.
            assert!(!script.contains("${{"), "{script}");
            let variables = step["env"].as_object().unwrap().iter();
            let variables = variables.map(|(name, value)| {
                let value = value.as_str().unwrap();
                let value = value.strip_prefix("${{ inputs.").unwrap();
                (name.as_str(), input(value.strip_suffix(" }}").unwrap()))
            });
            let variables: Vec<(&str, &str)> = variables.collect();
            assert_eq!(step["shell"], "sh");
            last = Some(self.step(script, &variables));
        }
        last.expect("steps")
    }
}

#[test]
fn the_action_runs_a_command_under_the_lock_and_refuses_inputs_that_mislead() {
    let (redis, made) = (Redis::start(), Releases::new());
    let (url, here) = (redis.url(), made.url());
    let variables = [
        ("REDLOCK_URL", "redis://127.0.0.1:1"),
        ("REDLOCK_RELEASES", &here),
    ];
    let job = GithubJob::new(redis.dir.path(), &variables);
    let sum = checksum(&made.tarball());
    let wrong = sum.replace(|digit: char| digit.is_ascii_digit(), "a");
    // The action installs nothing with a wrong checksum or a missing version.
    for (input, value, code) in [("sha256", &*wrong, 65), ("version", "99.0.0", 69)] {
        outcome(&mut job.uses(&[(input, value)])).assert_code(code);
    }
    let path = fs::read_to_string(job.temporary().join("path")).unwrap();
    assert_eq!(path, "", "nothing is installed");

    let held = "command -v redlock; redlock extend\n[ \"$REDLOCK_NAME\" = deploy ]
        ! grep -qF \"$REDLOCK_URL\" /proc/$PPID/cmdline || exit 8\nenv | grep ^INPUT_ || exit 7";
    let installed = job.temporary().join("redlock/bin/redlock");
    let installed = format!("{}\n", installed.display());
    let quotes = "the input args takes no quotes";
    let options = "redlock: the inputs name and run must not begin with -\n";
    for (name, run, args, status, stdout, why) in [
        ("deploy", held, "", 7, &*installed, ""),
        // As in a step of GitHub itself, a failure ends the script.
        ("deploy", "false\necho and on", "", 1, "", ""),
        ("", "true", "", 64, "", ""),
        ("deploy", "echo ran", "--reason='a b'", 64, "", quotes),
        ("deploy", "echo ran", "-n --ttl \"5s\"", 64, "", quotes),
        ("--shell=echo ran", "true", "deploy", 64, "", options),
        ("-v", "true", "deploy", 64, "", options),
        ("deploy", "-x", "deploy", 64, "", options),
    ] {
        let end = outcome(&mut job.uses(&[
            ("name", name),
            ("run", run),
            ("args", args),
            ("redis-url", &url),
            ("sha256", &sum),
        ]));
        end.assert_said(status, why);
        assert_eq!(end.stdout, stdout, "{end:?}");
    }
    assert_nothing_left(&redis);
}

#[test]
fn inputs_of_the_action_are_never_run() {
    let (redis, made) = (Redis::start(), Releases::new());
    let (url, releases) = (redis.url(), made.url());
    let job = GithubJob::new(redis.dir.path(), &[]);
    let marker = redis.dir.path().join("ran");
    let touch = format!("touch {}", marker.display());
    let usual = [
        ("name", "deploy"),
        ("redis-url", &url),
        ("releases", &releases),
    ];
    for evil in ["$(TOUCH)`TOUCH`", "\"; TOUCH; \"'; TOUCH; '"] {
        let evil = &*evil.replace("TOUCH", &touch);
        for input in "name args reason redis-url releases version sha256".split(' ') {
            // If the installation fails, that step is the last.
            let is_of_installation = ["releases", "version", "sha256"].contains(&input);
            let run = if is_of_installation { "" } else { "true" };
            let with = [&[(input, evil), ("run", run)], &usual[..]].concat();
            outcome(&mut job.uses(&with));
        }
    }
    assert!(!marker.exists());
}
