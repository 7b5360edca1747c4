//! Configuration files, and the durations in them, as a target of [`crate::fuzz`].

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{FromSettings, Sources, parse};
use crate::cli;
use crate::fuzz::{Target, assert_safe_line, texts};
use crate::report::escaped;
use crate::typed::Typed;

pub const TARGET: Target = Target {
    name: "config",
    check: config,
    examples,
};

fn examples() -> Vec<Vec<u8>> {
    texts(&[
        "# ours\n\nREDLOCK_URL=redis://h:1/2\nexport REDLOCK_PREFIX='x y:'\nREDLOCK_QUIET = \"0\"\n",
        "\u{feff}REDLOCK_JITTER=1h 30m\r\nREDLOCK_TTL=9s\nREDLOCK_REPAIR_TTL=1\nREDLOCK_QUIET=yes\n",
        "REDLOCK_PASSWORD_FILE=/a\nREDLOCK_PASSWORD_FILE=b\n",
        "REDLOCK_MAX_RUNTIME=1y\nREDLOCK_TLL=9\nhunter2\n",
        "0.000000001",
        "1M 3months",
        "365d 1ns",
    ])
}

/// A file, and a duration. The value of a setting is repeated by no message.
fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    duration(&text);
    let settings = match parse(Path::new("/f"), &text) {
        Ok(settings) => settings,
        Err(error) => return assert_safe_line(&escaped(&error.to_string())),
    };
    for setting in &settings {
        duration(&setting.value);
        assert!(!setting.value.contains('\n'));
        assert!(text.contains(&setting.value));
    }
    let sources = Sources {
        settings,
        ..Sources::default()
    };
    let _ = (sources.url(), sources.verbosity());
    let words = ["run", "a", "--", "true"].map(OsString::from);
    let typed = Typed::new(words.to_vec());
    match FromSettings::new(&sources, &typed) {
        Ok(from_settings) => {
            let all = typed.with(from_settings.words());
            assert_eq!(all.len(), words.len() + from_settings.stand_ins.len());
        }
        Err(error) => assert_safe_line(&escaped(&error.to_string())),
    }
}

/// What is a duration is one again when it is printed.
fn duration(text: &str) {
    match cli::duration(text) {
        Ok(duration) => {
            assert!(duration <= Duration::from_secs(365 * 24 * 3600), "{text}");
            let printed = humantime::format_duration(duration).to_string();
            // Months and years are printed, and aren't read.
            let is_short = duration < Duration::from_secs(30 * 24 * 3600);
            assert!(
                !is_short || cli::duration(&printed) == Ok(duration),
                "{text}"
            );
        }
        Err(why) => assert!(why.len() < 200, "{why}"),
    }
}
