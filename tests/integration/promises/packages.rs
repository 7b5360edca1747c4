//! The packages of `make dist` and their installation: tarball, .deb, .rpm, image, the installer, and redlock in CI.
//!
//! `REDLOCK_DIST` names the directory that `make dist` has filled (`make dist-test` sets it). Without it the tests package the
//! binary under test, which isn't static: it runs with the libraries of this machine. `make dist-check` compares two builds.
//! Packages for Debian and images are made and tested on Debian and its derivatives. GitHub's and GitLab's own work is not
//! tested, only the commands in a document.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use serde_json::Value;
use tempfile::TempDir;

use crate::generated::root;
use crate::promises::recipes::yaml;
use crate::support::{
    Outcome, REDLOCK, Redis, Running, assert_nothing_left, begin_packaging_test, free_port,
    outcome, wait_until, without_terminal,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A directory of releases, as one keeps them.
pub struct Releases {
    pub path: PathBuf,
    // What was packaged for a test goes with it.
    _made: Option<TempDir>,
}

impl Releases {
    /// Those of `make dist`, if they are under test, and else these kinds of packages of a binary.
    fn of(binary: &Path, kinds: &[&str]) -> Self {
        if let Some(path) = std::env::var_os("REDLOCK_DIST") {
            let path = root().join(path);
            return Self { path, _made: None };
        }
        let made = TempDir::new().unwrap();
        let stripped = made.path().join("stripped");
        run(&["strip", "-o", text(&stripped), text(binary)]);
        let path = made.path().join("dist");
        // Compressing takes as long as it takes.
        let packaged = package(root(), &stripped, &path, kinds).output().unwrap();
        Outcome::from(packaged).assert_code(0);
        Self {
            path,
            _made: Some(made),
        }
    }

    fn with(kinds: &[&str]) -> Self {
        Self::of(Path::new(REDLOCK), kinds)
    }

    /// With the tarball, if not with all; tests that run at the same time share them.
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

    /// The names of all files.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// The only file whose name ends so.
    fn file(&self, end: &str) -> PathBuf {
        let names = self.names();
        let found: Vec<&String> = names.iter().filter(|name| name.ends_with(end)).collect();
        assert_eq!(found.len(), 1, "*{end} in {names:?}");
        self.path.join(found[0])
    }

    pub fn tarball(&self) -> PathBuf {
        self.file(".tar.gz")
    }

    /// A copy of what an installation takes, to be changed.
    fn copy(&self) -> Self {
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

/// Serves a directory over HTTP until the process is dropped. Returns it, and the URL.
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

/// Packages a binary with the files of a checkout.
fn package(checkout: &Path, binary: &Path, dist: &Path, kinds: &[&str]) -> Command {
    begin_packaging_test();
    let mut command = Command::new(checkout.join("scripts/dist"));
    command
        .args([binary, dist])
        .args(kinds)
        .env_remove("SOURCE_DATE_EPOCH");
    command
}

/// A program with its arguments, whose output counts.
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

fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists()
}

/// Whether what is under test was made before by `make dist`.
fn is_of_make_dist() -> bool {
    std::env::var_os("REDLOCK_DIST").is_some()
}

/// Whether what is packaged needs nothing of the system.
fn is_static(redlock: &Path) -> bool {
    let built = run(&[text(redlock), "--version", "-v"]).stdout;
    // That of `make dist` must be.
    assert!(!is_of_make_dist() || built.contains("static"));
    built.contains("static")
}

/// A command that needs root, or what looks like it.
fn as_root(words: &[&str]) -> Command {
    let alike: &[&str] = if nix::unistd::geteuid().is_root() {
        &[]
    } else {
        &["unshare", "-r"]
    };
    let words = [alike, words].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

pub fn assert_is_this_version(redlock: &Path) {
    let version = run(&[text(redlock), "--version"]).stdout;
    assert_eq!(version, format!("redlock {VERSION}\n"));
}

/// What was installed is this version, and runs a command under a lock.
fn assert_works(redlock: &Path) {
    assert_is_this_version(redlock);
    let server = Redis::start();
    let mut held = Command::new(redlock);
    held.args(["run", "a", "--", "sh", "-c"]).arg(format!(
        "{} extend && echo \"$REDLOCK_NAME\"",
        redlock.display()
    ));
    held.env("REDLOCK_URL", server.url());
    without_terminal(&mut held);
    let ran = outcome(&mut held);
    assert_eq!(ran.assert_code(0).stdout, "a\n");
}

/// Checks that all files of a directory of the checkout are below another one, compressed or not.
fn assert_has_all(of: &str, end: &str, there: &Path) {
    let mut count = 0;
    for file in fs::read_dir(root().join(of)).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        if !file.path().is_file() || !name.ends_with(end) {
            continue;
        }
        count += 1;
        let packaged = there.join(&name);
        if packaged.exists() {
            assert!(
                fs::read(&packaged).unwrap() == fs::read(file.path()).unwrap(),
                "{name}"
            );
        } else {
            let unpacked = run(&["gzip", "-dc", &format!("{}.gz", packaged.display())]);
            assert!(
                unpacked.stdout.as_bytes() == fs::read(file.path()).unwrap(),
                "{name}"
            );
        }
    }
    assert!(count > 0, "{of}");
}

/// Checks the manual, the alerts, the dashboard, and the completions where each shell looks for them.
fn assert_has_the_rest(share: &Path, zsh: &str) {
    assert_has_all("man", ".1", &share.join("man/man1"));
    assert_has_all("man", ".7", &share.join("man/man7"));
    assert_has_all("docs/monitoring", "", &share.join("doc/redlock/monitoring"));
    for (file, there) in [
        ("redlock.bash", "bash-completion/completions/redlock"),
        ("redlock.fish", "fish/vendor_completions.d/redlock.fish"),
        ("_redlock", zsh),
    ] {
        let packaged = fs::read(share.join(there)).unwrap();
        assert!(
            packaged == fs::read(root().join("completions").join(file)).unwrap(),
            "{file}"
        );
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
    is_static(&redlock);
    let share = prefix.path().join("share");
    assert_has_the_rest(&share, "zsh/site-functions/_redlock");
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let packaged = fs::read(share.join("doc/redlock").join(licence)).unwrap();
        assert_eq!(packaged, fs::read(root().join(licence)).unwrap());
    }
    for line in run(words!("tar --numeric-owner -tvzf", text(&tarball)))
        .stdout
        .lines()
    {
        let is_program = line.ends_with("/bin/redlock");
        let mode = if is_program { "rwxr-xr-x" } else { "rw-r--r--" };
        assert!(line[1..].starts_with(&format!("{mode} 0/0 ")), "{line}");
    }
}

#[test]
fn the_deb_is_installed_by_dpkg_with_man_pages_and_completions_in_debians_places() {
    if !is_debian() {
        return;
    }
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

    // A root of its own, in which nothing is installed.
    let system = TempDir::new().unwrap();
    let at = |path: &str| system.path().join(path);
    for directory in ["info", "updates"] {
        fs::create_dir_all(at("var/lib/dpkg").join(directory)).unwrap();
    }
    fs::write(at("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |words: &[&str]| {
        let options = [
            "dpkg",
            &format!("--root={}", system.path().display()),
            &format!("--log={}", at("dpkg.log").display()),
            "--force-script-chrootless",
            // Containers leave the documentation out.
            "--path-include=/usr/*",
        ];
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
    assert_eq!(verified.assert_code(0).stdout, "");
    fs::write(share.join("doc/redlock/README.md"), "changed").unwrap();
    assert_ne!(dpkg(&["--verify", "redlock"]).stdout, "");
    dpkg(&["--remove", "redlock"]).assert_code(0);
    assert!(!at("usr/bin/redlock").exists());
}

#[test]
fn the_rpm_has_the_binary_the_manual_and_no_dependencies() {
    if !is_debian() {
        return;
    }
    let releases = Releases::with(&["rpm"]);
    let package = releases.file(".rpm");
    let query = |words: &[&str]| run(&[&["rpm", "-qp"], words, &[text(&package)]].concat()).stdout;
    let arch = std::env::consts::ARCH;
    let about = query(&["--queryformat", "%{NAME} %{VERSION} %{ARCH} %{LICENSE}"]);
    assert_eq!(about, format!("redlock {VERSION} {arch} MIT OR Apache-2.0"));
    let needed = query(&["--requires"]);
    let needs_nothing = needed.lines().all(|line| line.starts_with("rpmlib("));
    assert!(needs_nothing || !is_of_make_dist(), "{needed}");
    let listed = query(&["--list"]);
    for file in [
        "bin/redlock",
        "share/man/man1/redlock-run.1",
        "share/zsh/site-functions/_redlock",
    ] {
        assert!(listed.contains(&format!("/usr/{file}")), "{listed}");
    }
}

#[test]
fn the_image_runs_redlock_as_a_non_root_user_and_has_certificates() {
    if !is_debian() {
        return;
    }
    let releases = Releases::with(&["image"]);
    let work = TempDir::new().unwrap();
    let layout = work.path().join("layout");
    fs::create_dir(&layout).unwrap();
    let archive = releases.file("-oci.tar");
    run(&["tar", "-C", text(&layout), "-xf", text(&archive)]);
    let blob = |digest: &Value| {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        let file = layout.join("blobs/sha256").join(digest);
        assert_eq!(checksum(&file), digest);
        file
    };
    let json = |file: &Path| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
    let index = json(&layout.join("index.json"));
    let name = format!("redlock:{VERSION}");
    let named = &index["manifests"][0]["annotations"];
    assert_eq!(named["org.opencontainers.image.ref.name"], *name);
    assert_eq!(json(&layout.join("manifest.json"))[0]["RepoTags"][0], *name);
    let manifest = json(&blob(&index["manifests"][0]["digest"]));
    let config = json(&blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["User"], "65532:65532");
    let entrypoint = config["config"]["Entrypoint"][0].as_str().unwrap();

    let system = work.path().join("root");
    fs::create_dir(&system).unwrap();
    fs::set_permissions(&system, fs::Permissions::from_mode(0o755)).unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        let layer = blob(&layer["digest"]);
        run(&["tar", "-C", text(&system), "-xzf", text(&layer)]);
    }
    let certificates = system.join("etc/ssl/certs/ca-certificates.crt");
    let certificates = fs::read_to_string(certificates).unwrap();
    assert!(certificates.matches("BEGIN CERTIFICATE").count() > 50);

    let redlock = system.join("usr/bin/redlock");
    if !is_static(&redlock) {
        let libraries = run(&["ldd", text(&redlock)]).stdout;
        for library in libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            let there = system.join(&library[1..]);
            fs::create_dir_all(there.parent().unwrap()).unwrap();
            fs::copy(library, there).unwrap();
        }
    }
    let inside = |arguments: &[&str]| {
        let mut words = vec!["chroot"];
        // In a user namespace of one's own there is no other user.
        if nix::unistd::geteuid().is_root() {
            words.push("--userspec=65532:65532");
        }
        words.extend([text(&system), entrypoint]);
        let mut command = as_root(&[&words, arguments].concat());
        outcome(
            command
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        )
    };
    let version = inside(&["--version"]);
    version.assert_code(0);
    assert_eq!(version.stdout, format!("redlock {VERSION}\n"));
    // The certificates are those that a connection uses: only the server is missing.
    inside(&["-u", "rediss://127.0.0.1:1", "status"]).assert_code(69);
}

/// The installer, with these variables.
fn install(prefix: &Path, variables: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new("sh");
    command
        .args([root().join("ci/install.sh").as_path(), prefix])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TMPDIR", prefix.parent().unwrap())
        .envs(variables.iter().copied());
    outcome(&mut command)
}

/// Nothing is there but what a test has put there.
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
        install(&prefix, &variables)
            .assert_code(code)
            .assert_says(why);
        assert_empty(work.path());
    };
    refused(&releases.url(), &wrong, 65, &wrong);
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

    // A checksum that is given is the only one that counts.
    let variables = [
        ("REDLOCK_RELEASES", &*changed.url()),
        ("REDLOCK_SHA256", &right),
    ];
    let said = install(&prefix, &variables).assert_code(0).stderr.clone();
    let place = prefix.display();
    let path =
        format!("redlock: {place}/bin isn't on your PATH: export PATH=\"{place}/bin:$PATH\"\n");
    let installed = format!("redlock: installed version {VERSION} as {place}/bin/redlock, ");
    assert!(
        said.starts_with(&installed) && said.ends_with(&path),
        "{said}"
    );
    assert_is_this_version(&prefix.join("bin/redlock"));
    fs::remove_dir_all(&prefix).unwrap();
    let capitals = right.to_uppercase();
    let variables = [variables[0], ("REDLOCK_SHA256", &capitals)];
    install(&prefix, &variables).assert_code(0);
    fs::remove_dir_all(&prefix).unwrap();

    let changed = releases.copy();
    let mut tarball = fs::OpenOptions::new()
        .append(true)
        .open(changed.tarball())
        .unwrap();
    tarball.write_all(b"more").unwrap();
    refused(&changed.url(), "", 65, &right);
    refused(&changed.url(), &right, 65, &right);

    install(&prefix, &[("REDLOCK_RELEASES", &releases.url())])
        .assert_code(0)
        .assert_says("the checksum is right");
    assert_is_this_version(&prefix.join("bin/redlock"));
    for version in ["99.0.0", "v99.0.0"] {
        let other = [
            ("REDLOCK_RELEASES", &*releases.url()),
            ("REDLOCK_VERSION", version),
        ];
        install(&prefix, &other)
            .assert_code(69)
            .assert_says("redlock-99.0.0-");
    }
}

#[test]
fn the_installer_follows_links_and_leaves_modes_as_they_are() {
    let releases = Releases::new();
    let dir = TempDir::new().unwrap();
    let at = |path: &str| dir.path().join(path);
    for directory in ["dotfiles/bin", "prefix"] {
        fs::create_dir_all(at(directory)).unwrap();
        fs::set_permissions(at(directory), fs::Permissions::from_mode(0o2770)).unwrap();
    }
    fs::write(at("dotfiles/bin/own"), "").unwrap();
    std::os::unix::fs::symlink("../dotfiles/bin", at("prefix/bin")).unwrap();
    install(&at("prefix"), &[("REDLOCK_RELEASES", &releases.url())]).assert_code(0);
    for directory in ["dotfiles/bin", "prefix"] {
        let mode = fs::metadata(at(directory)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o2770, "{directory}");
    }
    assert!(at("prefix/bin").is_symlink() && at("dotfiles/bin/own").exists());
    assert_is_this_version(&at("dotfiles/bin/redlock"));
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
        refused.assert_code(69).assert_says(&shown);
        for part in ["annie", "s3", "cr@"] {
            assert!(!refused.stderr.contains(part), "{refused:?}");
        }
    }
}

#[test]
fn the_installer_needs_curl_wget_or_busybox_alone() {
    let releases = Releases::new();
    let (_server, url) = serve(&releases.path);
    let tools = "sh sed tar gzip uname mktemp sha256sum rm mkdir";
    for client in ["curl", "wget", "busybox"] {
        let work = TempDir::new().unwrap();
        let programs = work.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let find = "command -v \"$1\"";
        let program =
            |name: &str| outcome(Command::new("sh").args(["-c", find, "sh", name])).stdout;
        if program(client).is_empty() {
            continue;
        }
        for name in tools.split(' ').chain([client, "wget"]) {
            let target = match client {
                "busybox" => program("busybox"),
                "curl" if name == "wget" => continue,
                _ => program(name),
            };
            let _ = std::os::unix::fs::symlink(target.trim(), programs.join(name));
        }
        let prefix = work.path().join("prefix");
        let variables = [("PATH", text(&programs)), ("REDLOCK_RELEASES", &url)];
        install(&prefix, &variables).assert_code(0);
        assert_is_this_version(&prefix.join("bin/redlock"));
        let other = [&variables[..], &[("REDLOCK_VERSION", "99.0.0")]].concat();
        install(&prefix, &other).assert_code(69);
    }
}

#[test]
fn an_installer_that_was_downloaded_in_part_does_nothing() {
    let releases = Releases::new();
    let work = TempDir::new().unwrap();
    let prefix = work.path().join("prefix");
    let script = fs::read_to_string(root().join("ci/install.sh")).unwrap();
    let lines: Vec<&str> = script.lines().collect();
    let run = |part: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", "printf %s \"$1\" | sh -s -- \"$2\"", "sh", part])
            .arg(&prefix)
            .env("REDLOCK_RELEASES", releases.url())
            .env("TMPDIR", work.path());
        outcome(&mut sh)
    };
    for end in 0..lines.len() {
        run(&lines[..end].join("\n"));
        assert_empty(work.path());
    }
    run(&script).assert_code(0);
    assert!(prefix.join("bin/redlock").exists());
}

/// A job of GitHub's on a machine that has no redlock.
pub struct GithubJob {
    directory: PathBuf,
    variables: Vec<(String, String)>,
}

impl GithubJob {
    /// In this directory, with the variables of the job.
    pub fn new(directory: &Path, variables: &[(&str, &str)]) -> Self {
        let temporary = directory.join("runner-temp");
        fs::create_dir_all(&temporary).unwrap();
        fs::write(temporary.join("path"), "").unwrap();
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            directory: directory.to_owned(),
            variables: variables.collect(),
        }
    }

    pub fn temporary(&self) -> PathBuf {
        self.directory.join("runner-temp")
    }

    /// A step, as GitHub runs it with this shell.
    pub fn step(&self, shell: &str, run: &str, variables: &[(&str, &str)]) -> Command {
        let temporary = self.temporary();
        let file = crate::support::script(&temporary, "step.sh", run);
        let added = fs::read_to_string(temporary.join("path")).unwrap();
        let system = std::env::var("PATH").unwrap();
        // What was added last comes first.
        let path = added
            .lines()
            .fold(system, |path, line| format!("{line}:{path}"));
        let mut command = Command::new(shell);
        command
            .arg("-e")
            .arg(file)
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied())
            .env("PATH", path)
            .env("HOME", &self.directory)
            .env("TMPDIR", &temporary)
            .env("RUNNER_TEMP", &temporary)
            .env("GITHUB_PATH", temporary.join("path"))
            .env("GITHUB_ACTION_PATH", root())
            .current_dir(&self.directory);
        without_terminal(&mut command);
        command
    }

    /// A step that uses this action: it has come to the last of the action's own steps. Values are
    /// those that GitHub would have put in.
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
            // What GitHub puts into a script is run.
            assert!(!script.contains("${{"), "{script}");
            let variables = step["env"].as_object().unwrap().iter();
            let variables: Vec<(&str, &str)> = variables
                .map(|(name, value)| {
                    let value = value.as_str().unwrap();
                    let value = value.strip_prefix("${{ inputs.").unwrap();
                    (name.as_str(), input(value.strip_suffix(" }}").unwrap()))
                })
                .collect();
            last = Some(self.step(step["shell"].as_str().unwrap(), script, &variables));
        }
        last.expect("steps")
    }
}

/// A directory in which a job works, with a Redis.
struct Workspace {
    redis: Redis,
    releases: Arc<Releases>,
}

impl Workspace {
    fn new() -> Self {
        Self {
            redis: Redis::start(),
            releases: Releases::new(),
        }
    }

    fn dir(&self) -> &Path {
        self.redis.dir.path()
    }
}

#[test]
fn the_action_installs_redlock_and_runs_a_command_under_the_lock() {
    let workspace = Workspace::new();
    let (url, releases) = (workspace.redis.url(), workspace.releases.url());
    let variables = [("REDLOCK_URL", &*url), ("REDLOCK_RELEASES", &releases)];
    let job = GithubJob::new(workspace.dir(), &variables);
    let held = "command -v redlock; redlock extend\n[ \"$REDLOCK_NAME\" = deploy ]\nenv | grep ^INPUT_ || exit 7";
    let run = outcome(&mut job.uses(&[("name", "deploy"), ("run", held)]));
    run.assert_code(7);
    let installed = job.temporary().join("redlock/bin/redlock");
    assert_eq!(run.stdout.trim(), text(&installed));
    // As in a step of GitHub's own, nothing is run after what fails.
    let failing = "false\necho and on";
    let run = outcome(&mut job.uses(&[("name", "deploy"), ("run", failing)]));
    run.assert_code(1);
    assert_eq!(run.stdout, "");
    let nameless = outcome(&mut job.uses(&[("run", "true")]));
    nameless.assert_code(64);
    assert_nothing_left(&workspace.redis);
}

#[test]
fn the_action_takes_each_setting_as_an_input() {
    let workspace = Workspace::new();
    let (url, releases) = (workspace.redis.url(), workspace.releases.url());
    let sum = checksum(&workspace.releases.tarball());
    let job = GithubJob::new(workspace.dir(), &[("REDLOCK_URL", "redis://127.0.0.1:1")]);
    let with = [
        ("name", "deploy"),
        (
            "run",
            "redlock status --json; tr '\\0' ' ' </proc/$PPID/cmdline",
        ),
        ("args", "--slots 3\n--once  *"),
        ("reason", "the \"last\" $HOME; release"),
        ("redis-url", &*url),
        ("releases", &releases),
        ("version", VERSION),
        ("sha256", &sum),
    ];
    let run = outcome(&mut job.uses(&with));
    run.assert_code(0);
    let (status, command_line) = run.stdout.split_once("]\n").unwrap();
    let status: Value = serde_json::from_str(&format!("{status}]")).unwrap();
    let holder = &status[0]["holders"][0];
    assert_eq!(holder["reason"], "the \"last\" $HOME; release");
    assert!(
        command_line.starts_with("redlock run --slots 3 --once * "),
        "{run:?}"
    );
    assert!(!command_line.contains(&url), "{run:?}");

    let job = GithubJob::new(workspace.dir(), &[]);
    let wrong = sum.replace(|digit: char| digit.is_ascii_digit(), "a");
    for with in [
        [("releases", &*releases), ("sha256", &wrong)],
        [("releases", &releases), ("version", "99.0.0")],
    ] {
        let refused = outcome(&mut job.uses(&with));
        assert!(
            [Some(65), Some(69)].contains(&refused.code()),
            "{refused:?}"
        );
    }
    let path = fs::read_to_string(job.temporary().join("path")).unwrap();
    assert_eq!(path, "", "nothing is installed");
}

#[test]
fn inputs_of_the_action_are_never_run() {
    let workspace = Workspace::new();
    let (url, releases) = (workspace.redis.url(), workspace.releases.url());
    let job = GithubJob::new(workspace.dir(), &[("REDLOCK_URL", &url)]);
    let marker = workspace.dir().join("ran");
    let touch = format!("touch {}", marker.display());
    let evils = [
        format!("$({touch})"),
        format!("`{touch}`"),
        format!("\"; {touch}; \""),
        format!("'; {touch}; '"),
    ];
    for evil in &evils {
        for input in ["name", "args", "redis-url"] {
            let inputs = [
                ("name", "deploy"),
                ("args", ""),
                ("redis-url", ""),
                ("releases", &releases),
                ("run", "true"),
            ];
            let with = inputs.map(|(name, value)| (name, if name == input { evil } else { value }));
            outcome(&mut job.uses(&with));
        }
        for input in ["version", "sha256"] {
            let with = [("releases", &*releases), (input, evil)];
            let refused = outcome(&mut job.uses(&with));
            assert_ne!(refused.code(), Some(0), "{input}: {evil}");
        }
        outcome(&mut job.uses(&[("releases", evil)])).assert_code(69);
    }
    assert!(!marker.exists());
}

#[test]
fn inputs_of_the_action_that_mislead_are_refused() {
    let workspace = Workspace::new();
    let (url, releases) = (workspace.redis.url(), workspace.releases.url());
    let variables = [("REDLOCK_URL", &*url), ("REDLOCK_RELEASES", &releases)];
    let job = GithubJob::new(workspace.dir(), &variables);
    let quotes = "the input args takes no quotes";
    let options = "redlock: the inputs name and run must not begin with -\n";
    for (name, run, args, why) in [
        ("deploy", "echo ran", "--reason='release 1.2'", quotes),
        ("deploy", "echo ran", "-n --ttl \"5s\"", quotes),
        ("--shell=echo ran", "true", "deploy", options),
        ("-v", "true", "deploy", options),
        ("deploy", "-x", "deploy", options),
    ] {
        let refused = outcome(&mut job.uses(&[("name", name), ("run", run), ("args", args)]));
        refused.assert_code(64).assert_says(why);
        assert_eq!(refused.stdout, "");
    }
    assert_nothing_left(&workspace.redis);
}

/// The script of a GitLab job, with what the template has it run before, and what it runs after it.
pub fn gitlab_job(job: &Value) -> (String, String) {
    let template = yaml(&fs::read_to_string(root().join("ci/gitlab.yml")).unwrap());
    let base = job["extends"].as_str().expect("extends");
    let part = |name: &str| {
        let lines = if job[name].is_null() {
            &template[base][name]
        } else {
            &job[name]
        };
        let lines = match lines {
            Value::String(line) => vec![line.clone()],
            Value::Array(lines) => lines
                .iter()
                .map(|line| line.as_str().unwrap().to_owned())
                .collect(),
            other => panic!("{name}: {other}"),
        };
        lines.join("\n") + "\n"
    };
    (
        part("before_script") + &part("script"),
        part("after_script"),
    )
}

/// A shell that runs such a script as GitLab's runner does.
pub fn gitlab_shell(shell: &str, script: &str, directory: &Path) -> Command {
    let pipefail = if shell == "bash" {
        "-eo pipefail"
    } else {
        "-e"
    };
    let text = format!("set {pipefail}; set +o noclobber; : | eval \"$0\"; exit 0");
    let mut command = Command::new(shell);
    command
        .args(["-c", &text, script])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", directory)
        .env("TMPDIR", directory)
        .env("CI_JOB_ID", "4711")
        .current_dir(directory);
    without_terminal(&mut command);
    command
}

#[test]
fn the_gitlab_template_installs_redlock_for_the_job() {
    let job = yaml(
        "{extends: .redlock, script: [command -v redlock, exec redlock run deploy -- redlock extend]}",
    );
    let (script, after) = gitlab_job(&job);
    for shell in ["bash", "sh"] {
        let workspace = Workspace::new();
        let work = workspace.dir().join("work");
        fs::create_dir(&work).unwrap();
        let (url, releases) = (workspace.redis.url(), workspace.releases.url());
        let start = |script: &str, checksum: &str| {
            let mut job = gitlab_shell(shell, script, &work);
            job.env("REDLOCK_URL", &url)
                .env("REDLOCK_RELEASES", &releases)
                .env("REDLOCK_SHA256", checksum);
            outcome(&mut job)
        };
        // Without the right checksum the script isn't begun.
        let refused = start(&script, "0000");
        refused.assert_says("nothing is installed");
        assert_ne!(refused.code(), Some(0));
        assert_eq!(refused.stdout, "");
        start(&after, "").assert_code(0);

        let run = start(&script, "");
        run.assert_code(0);
        let installed = work.join("redlock-4711/bin/redlock");
        assert_eq!(run.stdout.trim(), text(&installed));
        assert_nothing_left(&workspace.redis);
        start(&after, "").assert_code(0);
        assert_empty(&work);
    }
}
