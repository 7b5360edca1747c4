//! A wall clock of a server, wrong by a given time.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::{LIBRARY, compile};

/// A wall clock, implemented by a library that is preloaded into the server. Tests can change the clock while the server runs.
pub struct WallClock {
    offset: fs::File,
    /// Directory with the offset file, and a link to the library, because `LD_PRELOAD` accepts no path with a space.
    dir: tempfile::TempDir,
}

impl WallClock {
    /// Creates a clock that is ahead by this many milliseconds.
    pub fn ahead_by(ms: i64) -> Self {
        static LIBRARY: LazyLock<PathBuf> = LazyLock::new(compiled);
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&*LIBRARY, dir.path().join("clock.so")).unwrap();
        let offset = fs::File::create(dir.path().join("offset")).unwrap();
        let clock = Self { offset, dir };
        clock.set(ms);
        clock
    }

    /// Sets the clock ahead of the right time by this many milliseconds.
    pub fn set(&self, ms: i64) {
        let microseconds = ms * 1000;
        let written = self.offset.write_all_at(&microseconds.to_ne_bytes(), 0);
        written.unwrap();
    }

    /// Returns the words that start a server with this clock ([`super::Redis::under`]).
    pub fn before(&self) -> Vec<String> {
        let dir = self.dir.path().display();
        vec![
            "env".into(),
            format!("LD_PRELOAD={dir}/clock.so"),
            format!("CLOCK_OFFSET_FILE={dir}/offset"),
        ]
    }
}

fn compiled() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    // Another run of the tests may compile it at the same time.
    let fresh = tempfile::NamedTempFile::new_in(&directory).unwrap();
    compile(LIBRARY, include_str!("clock.c"), fresh.path());
    let library = directory.join("clock.so");
    fresh.persist(&library).unwrap();
    library
}
