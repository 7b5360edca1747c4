//! A terminal as people use it: a shell in tmux, with a tmux server of its own.

use std::process::Command;

use crate::support::{Redis, is_alive, path, wait_until, without_terminal};

/// An interactive shell in a window of tmux, in which redlock knows its server. The tmux server and everything in it end with
/// the test.
pub struct Tmux<'a> {
    redis: &'a Redis,
    pid: i32,
}

impl<'a> Tmux<'a> {
    /// Opens a window of this many columns and rows.
    pub fn with_size(redis: &'a Redis, columns: u16, rows: u16) -> Self {
        let mut tmux = Self { redis, pid: 0 };
        let shell = "PS1='$ ' exec bash --norc --noprofile --noediting -i";
        let home = redis.dir.path().to_str().unwrap();
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let options = ["-d", "-x", &columns, "-y", &rows, "-c", home];
        tmux.tmux(&[&["new-session"], &options[..], &[shell]].concat());
        let pid = tmux.tmux(&["display-message", "-p", "#{pid}"]);
        tmux.pid = pid.trim().parse().unwrap();
        tmux.wait_until("a prompt", |screen| screen.starts_with('$'));
        tmux
    }

    /// Returns the output of a tmux command.
    #[track_caller]
    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        let output = command.output().expect("tmux is installed");
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command
            .args(["-u", "-f", "/dev/null", "-S"])
            .arg(self.redis.dir.path().join("tmux.sock"))
            .args(arguments)
            .env_clear()
            .env("PATH", path())
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env("REDLOCK_URL", self.redis.url())
            .env("HOME", self.redis.dir.path());
        without_terminal(&mut command);
        command
    }

    /// Types a line, and Enter.
    pub fn type_line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
        self.press("Enter");
    }

    /// Presses a key by its name: `C-c`, `Enter`.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Returns the text on the screen.
    #[track_caller]
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen fulfils a condition.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl Fn(&str) -> bool) {
        wait_until(what, || condition(&self.screen()));
    }

    /// Waits for this line on the screen.
    #[track_caller]
    pub fn line(&self, line: &str) {
        self.wait_until(line, |screen| screen.lines().any(|shown| shown == line));
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        // A second panic would abort all tests.
        let is_panicking = std::thread::panicking();
        if is_panicking {
            // Prints the screen.
            let _ = self.command(&["capture-pane", "-p"]).status();
        }
        // Hangs up everything in it, which ends a stopped job as well. The server may have ended before.
        let _ = self.command(&["kill-server"]).output();
        let pid = self.pid;
        wait_until("the tmux server has ended", || {
            is_panicking || !is_alive(pid)
        });
    }
}
