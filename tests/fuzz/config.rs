//! Configuration files, and the durations in them, as a target of [`crate::fuzz`].

use std::path::Path;
use std::time::Duration;

use super::{Settings, Sources};
use crate::cli::{self, Common};
use crate::fuzz::{Target, assert_safe_line, texts};
use crate::report::escaped;

pub const TARGET: Target = Target::new("config", config, examples);

fn examples() -> Vec<Vec<u8>> {
    texts(&[
        "# ours\n\nREDLOCK_URL=redis://h:1/2\nexport REDLOCK_PREFIX='x y:'\nREDLOCK_QUIET = \"0\"\n",
        "\u{feff}REDLOCK_JITTER=1h 30m\nREDLOCK_TTL=9s\nREDLOCK_REPAIR_TTL=1\nREDLOCK_QUIET=yes\n",
        "REDLOCK_PASSWORD_FILE=/a\nREDLOCK_PASSWORD_FILE=b\n",
        "REDLOCK_MAX_RUNTIME=1y\nREDLOCK_TLL=9\nhunter2\n",
        "0.000000001",
        "1M 3months",
        "365d 1ns",
        "REDLOCK_SYNC=all\nREDLOCK_SHOW=full\r\n",
    ])
}

/// Reads a file and a duration. No message may repeat the value of a setting.
fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    duration(&text);
    let mut sources = Sources::default();
    if let Err(error) = sources.add_file(Path::new("/f"), &text, 2) {
        return assert_safe_line(&escaped(&error.to_string()));
    }
    for setting in &sources.settings {
        duration(&setting.value);
        assert!(!setting.value.contains('\n'));
        assert!(text.contains(&setting.value));
    }
    if let Err(error) = Settings::read(&Common::default(), &sources) {
        assert_safe_line(&escaped(&error.to_string()));
    }
}

/// Checks that a printed duration is a valid duration with the same value.
fn duration(text: &str) {
    match cli::duration(text) {
        Ok(duration) => {
            assert!(duration <= Duration::from_secs(365 * 24 * 3600), "{text}");
            let printed = humantime::format_duration(duration).to_string();
            // humantime prints months and years, but redlock doesn't read them.
            let is_short = duration < Duration::from_secs(30 * 24 * 3600);
            assert!(
                !is_short || cli::duration(&printed) == Ok(duration),
                "{text}"
            );
        }
        Err(why) => assert!(why.len() < 200, "{why}"),
    }
}
