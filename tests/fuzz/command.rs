//! Checks the masking of secrets in command lines, and the locks in a job's environment, with random texts.

use proptest::prelude::*;

use crate::fuzz::tests::cases;
use crate::job::privacy;
use crate::supervise::environment::{JobHold, entries};

/// Command lines with a placeholder for a secret.
const LINES: [&str; 8] = [
    "DB_PASSWORD={} ./deploy",
    "deploy --token {} --dry-run",
    "deploy --api-key='{}'",
    "curl -H 'Authorization: Bearer {}' https://h/",
    "redis-cli -u redis://me:{}@h:6379/0 PING",
    "run --data '{\"token\": \"{}\"}'",
    "echo start && PASSWORD=\"{}\" run >log 2>&1",
    "bash -c 'export SECRET={}; run'",
];

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_secret_is_masked_whatever_it_is_made_of(
        line in prop::sample::select(&LINES[..]), before in 0..LINES.len(),
        secret in "s3[a-zA-Z0-9+=_.~^%-]{6,40}",
    ) {
        let masked_before = privacy::masked(LINES[before]);
        let line = line.replace("{}", &secret);
        for text in [line.clone(), format!("{line}\n{line}"), format!("{masked_before}; {line}")] {
            let shown = privacy::masked(&text);
            prop_assert!(!shown.contains(&secret), "{}: {}", text, shown);
        }
    }

    #[test]
    fn no_text_is_masked_into_a_panic_or_a_much_longer_one(text in any::<String>()) {
        prop_assert!(privacy::masked(&text).len() <= 4 * text.len());
    }

    #[test]
    fn a_job_reads_the_locks_that_it_was_given(
        names in prop::collection::vec("[a-z=~:é]{1,20}", 1..5), token in "[a-z0-9:.-]{1,60}",
        separator in "[=~]",
    ) {
        let held = names.iter().map(|name| format!("{name}{separator}{token}"));
        let held = held.collect::<Vec<_>>().join(" ");
        let read: Option<Vec<JobHold>> = entries(held.as_bytes()).collect();
        let read = read.expect("no entry is malformed");
        let read_names: Vec<&str> = read.iter().map(|hold| hold.name.as_str()).collect();
        prop_assert_eq!(read_names, names);
        let is_same = |hold: &JobHold| {
            hold.token.as_bytes() == token.as_bytes() && hold.is_reentered == (separator == "~")
        };
        prop_assert!(read.iter().all(is_same));
    }
}
