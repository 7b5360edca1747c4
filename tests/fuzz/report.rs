//! Text for a terminal, as a target of [`crate::fuzz`]: it drives nothing, and fits.

use std::time::Duration;

use super::text::{columns, padded, shorten};
use super::{escaped, escaped_json, format_duration, format_wait, quoted, timestamp, truncate};
use crate::fuzz::{Target, assert_safe_line, texts};
use crate::shell::command_line;

pub const TARGET: Target = Target {
    name: "terminal",
    check: terminal,
    examples,
};

fn examples() -> Vec<Vec<u8>> {
    texts(&[
        "a\u{1b}[2Jb\nc\u{202e}\u{9b}31m\u{61c}\u{2028}",
        "東京e\u{301}🚀👩\u{200d}🚀",
        "runner@fv-az1234-567.internal.cloudapp.net",
        "sh\n-c\necho it's",
        "###vso[x]##[y] ::z::",
        "\u{fe0f}\u{301}\u{1f1e9}\u{1f1ea}\u{e0001}\u{115f}",
    ])
}

fn terminal(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let safe = escaped(&text);
    assert_safe_line(&safe);
    assert_eq!(escaped(&safe), safe);
    assert!(
        !safe.contains("##[") && !safe.contains("##vso["),
        "{safe:?}"
    );
    assert!(!safe.trim_start().starts_with("::"), "{safe:?}");
    let json = serde_json::to_string(&text).expect("text is JSON");
    let safe_json = escaped_json(&json);
    assert_safe_line(&safe_json);
    let read: String = serde_json::from_str(&safe_json).expect("it stays JSON");
    assert_eq!(read, text);
    for width in [0, 1, 2, 7, 80] {
        assert!(
            columns(&truncate(&safe, width)) <= width.max(1),
            "{width}: {safe}"
        );
        assert!(
            columns(&shorten(&safe, width)) <= width.max(1),
            "{width}: {safe}"
        );
        assert!(columns(&padded(&safe, width)) >= width);
    }
    assert!(quoted(&text).len() <= text.len() + 3);
    let words: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(command_line(&words).len() <= 4 * text.len() + 3 * words.len());
    numbers(bytes);
}

fn numbers(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk() else {
        return;
    };
    let ms = u64::from_le_bytes(*bytes);
    assert!(format_duration(Duration::from_millis(ms)).len() < 30);
    assert!(format_wait(Duration::from_millis(ms)).len() < 30);
    assert!(timestamp(ms).is_none_or(|text| text.len() == 24));
}
