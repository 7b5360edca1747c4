//! What commands read from outside and show, as targets of [`crate::fuzz`]: command lines with secrets,
//! what a job finds in its environment, fence files, and what is drawn of what Redis contains.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::doctor::evidence::{Info, Validity, other_primaries};
use super::fence::Content;
use super::identity::shortened;
use super::mistakes::mistake;
use super::{history, privacy, status};
use crate::fuzz::{Target, assert_safe, assert_safe_line, texts};
use crate::protocol::Token;
use crate::protocol::fuzz::{certificate_examples, server_examples};
use crate::report::escaped;
use crate::supervise::environment::{origin_of, pair, read_held};
use crate::typed::Typed;
use crate::variables::VARIABLES;

pub const TARGETS: [Target; 6] = [
    Target {
        name: "masks",
        check: masks,
        examples: command_lines,
    },
    Target {
        name: "environment",
        check: environment,
        examples: environments,
    },
    Target {
        name: "fence-file",
        check: fence_file,
        examples: fence_files,
    },
    Target {
        name: "screens",
        check: screens,
        examples: crate::protocol::fuzz::listings,
    },
    Target {
        name: "words",
        check: words,
        examples: words_examples,
    },
    Target {
        name: "evidence",
        check: evidence,
        examples: evidence_examples,
    },
];

// Secrets in command lines

fn command_lines() -> Vec<Vec<u8>> {
    texts(&[
        "mysql -psecret --user=ann",
        "sh\n-c\nDB_PASSWORD=x curl -u ann:secret https://ann:p@h/?token=x",
        "sudo -u ann\nredis-cli -a 'se cret' --tls",
        "curl -H 'Authorization: Bearer x' --data '{\"token\": \"x\", \"a\": 1}'",
        "export API_KEY=\"$(cat key)\"; restic --password-command \"echo x\" >log 2>&1",
        "docker login -p x `cat a`",
        "a=\\\"secret: x\\\" PASSWORD=\\'x",
    ])
}

/// A command, a word a line; and the same as one text.
fn masks(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let whole = privacy::masked(&text);
    assert!(whole.len() <= 4 * text.len(), "{whole}");
    let words: Vec<String> = shortened(text.lines().map(Into::into));
    assert!(words.iter().map(String::len).sum::<usize>() <= 2100);
}

// What a job finds

fn environments() -> Vec<Vec<u8>> {
    let variables = VARIABLES.map(|name| format!("{name}=a=t1:h:1\0"));
    let all = format!("X=1\0{}", variables.concat());
    texts(&["a=t1:h:1 b=c=t2:h:2", &all, " = =x a= é=\u{301}"])
}

/// The value of a variable; and all variables of another process.
fn environment(bytes: &[u8]) {
    let held = read_held(bytes);
    let pairs: Vec<OsString> = held.iter().map(|(name, token)| pair(name, token)).collect();
    let written = pairs.join(OsStr::new(" "));
    assert_eq!(read_held(written.as_bytes()), held);
    let ids: Vec<String> = held.iter().map(|(_, token)| token.id()).collect();
    for id in ids.iter().map(String::as_str).chain(["c0ffee"]) {
        let _ = origin_of(bytes, id);
    }
    if let Some(token) = Token::read(bytes.to_vec()) {
        assert!(!token.as_bytes().ends_with(b"\n"));
    }
}

// What doctor finds

fn evidence_examples() -> Vec<Vec<u8>> {
    [server_examples(), certificate_examples()].concat()
}

/// What servers say of themselves and of others, and certificates.
fn evidence(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let info = Info::parse(&text);
    for entry in other_primaries(&text).into_iter().chain(info.replicas()) {
        let _ = entry.place();
    }
    let _ = (
        info.mode(),
        info.number("uptime_in_seconds"),
        info.is_on("aof_enabled"),
    );
    let _ = Validity::of(bytes);
}

// Fence files

fn fence_files() -> Vec<Vec<u8>> {
    texts(&["7\n", "18446744073709551615\n", "", "7\n8\n", "-1\n", "7"])
}

fn fence_file(bytes: &[u8]) {
    match Content::parse(bytes) {
        Content::Nothing => assert!(bytes.is_empty()),
        Content::Number(number) => {
            let written = format!("{number}\n");
            assert_eq!(Content::parse(written.as_bytes()), Content::Number(number));
        }
        Content::Other => {}
    }
}

// What is drawn

fn screens(bytes: &[u8]) {
    let (locks, histories) = crate::protocol::fuzz::found(bytes);
    let widths = [None, Some(1), Some(20), Some(80), Some(300)];
    let width = widths[bytes.len() % widths.len()];
    for text in status::drawn(&locks, &histories, width) {
        assert_safe(&text);
    }
    for text in history::drawn(&histories, width) {
        assert_safe(&text);
    }
}

// Command lines of redlock

fn words_examples() -> Vec<Vec<u8>> {
    texts(&[
        "run\n-n\na\n--\ntrue",
        "run\n--wait\n1h 30m\n--slots=3\na\nb\n--\nsh\n-c\nx",
        "status\n--watch=1s\n*",
        "relaese\n-a",
        "run\na\nsh\n-c\nx",
        "history\n-n\nall\n--since\n1y",
        "fence\n/tmp/f\n18446744073709551616",
        "acquire\n--ttl\n0.5\n--slots\n0\na",
        "-u\nredis://h\nhelp\nx",
    ])
}

/// A command line, a word a line: what is wrong with it is said in a line that isn't endless.
fn words(bytes: &[u8]) {
    let words = bytes.split(|&byte| byte == b'\n');
    let words: Vec<OsString> = words
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let mut typed = Typed::new(words.clone());
    assert_eq!(typed.kinds().len(), typed.words.len());
    if let Err(error) = typed.read(&words) {
        let (said, _) = mistake(&error, &typed, &[]);
        assert_safe_line(&escaped(&said));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::tests::cases;

    /// Lines with a place for a secret, as a shell reads them.
    const LINES: [&str; 12] = [
        "mysql -p{} db",
        "sudo -u ann sshpass -p {} ssh h",
        "DB_PASSWORD={} ./deploy",
        "deploy --token {} --dry-run",
        "deploy --api-key='{}'",
        "curl -u ann:{} https://h/",
        "curl -H 'Authorization: Bearer {}' https://h/",
        "redis-cli -u redis://me:{}@h:6379/0 PING",
        "run --data '{\"token\": \"{}\"}'",
        "echo start && PASSWORD=\"{}\" run >log 2>&1",
        "docker login -u me -p {} h",
        "bash -c 'export SECRET={}; run'",
    ];

    proptest! {
        #![proptest_config(cases(200))]

        #[test]
        fn the_time_of_a_certificate_is_read(
            year in 1970..=9999_i64, month in 1..=12_u8, day in 1..=28_u8,
            time in (0..24_u8, 0..60_u8, 0..60_u8),
        ) {
            let (hour, minute, second) = time;
            let text = format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}Z");
            let bytes = &certificate_examples()[0];
            let old = b"20240229123456Z";
            let at = bytes.windows(old.len()).position(|part| part == old).unwrap();
            let mut bytes = bytes.clone();
            bytes[at..at + old.len()].copy_from_slice(text.as_bytes());
            let until = Validity::of(&bytes).unwrap().until;
            let until = UNIX_EPOCH + Duration::from_secs(until.cast_unsigned());
            let read = humantime::format_rfc3339_seconds(until).to_string();
            prop_assert_eq!(read.replace(['-', 'T', ':'], ""), text);
        }

        #[test]
        fn a_secret_is_masked_whatever_it_is_made_of(
            line in prop::sample::select(&LINES[..]), before in 0..LINES.len(),
            secret in "s3[a-zA-Z0-9+=_.~^%-]{6,40}",
        ) {
            let masked_before = privacy::masked(LINES[before]).into_owned();
            let line = line.replace("{}", &secret);
            for text in [line.clone(), format!("{line}\n{line}"), format!("{masked_before}; {line}")] {
                let shown = privacy::masked(&text).into_owned();
                prop_assert!(!shown.contains(&secret), "{}: {}", text, shown);
            }
        }

        #[test]
        fn what_a_job_finds_is_what_was_held(
            names in prop::collection::vec("[a-z=:é]{1,20}", 1..5), token in "[a-z0-9:.-]{1,60}",
        ) {
            let held: Vec<String> = names.iter().map(|name| format!("{name}={token}")).collect();
            let read = read_held(held.join(" ").as_bytes());
            let found: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(found, names);
            prop_assert!(read.iter().all(|(_, found)| found.as_bytes() == token.as_bytes()));
        }
    }
}
