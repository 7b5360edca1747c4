//! The identity that other clients see: host, user, command.

use std::borrow::Cow;

use super::privacy;
use crate::ci;
use crate::cli;
use crate::config::Settings;
use crate::protocol::Who;

/// Returns this process's identity for others. A name in the settings replaces the name of a CI job.
pub fn own_identity(settings: &Settings) -> Who {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let is_name = |name: &String| !name.trim().is_empty();
    let known_as = settings.who.clone().filter(is_name);
    let known_as = known_as.or_else(|| ci::job(variable));
    Who {
        host: nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        user: user(variable),
        pid: std::process::id(),
        known_as: masked(known_as.as_deref()),
        url: masked(ci::link(variable).as_deref()),
        ..Who::default()
    }
}

/// Returns this process's identity, with a reason for its request.
pub fn own_request(settings: &Settings, reason: Option<&str>) -> Who {
    Who {
        reason: masked(reason),
        ..own_identity(settings)
    }
}

/// Returns the user, preceded by the user who called sudo: `anna (root)`.
fn user(variable: impl Fn(&str) -> Option<String>) -> String {
    // Reads the password database only if the environment has no name, because reading it takes time.
    let user = variable("USER")
        .or_else(|| variable("LOGNAME"))
        .or_else(|| {
            let user = nix::unistd::User::from_uid(nix::unistd::getuid());
            user.ok().flatten().map(|user| user.name)
        });
    let user = user.unwrap_or_else(|| nix::unistd::getuid().to_string());
    match variable("SUDO_USER") {
        Some(caller) if caller != user => format!("{caller} ({user})"),
        _ => user,
    }
}

/// Returns this process's identity with the command that it will
/// run, as far as others may see it. `words` is the command.
pub fn own_job<'a, W: Iterator<Item = Cow<'a, str>>>(
    options: &cli::AcquireOptions,
    settings: &Settings,
    words: impl FnOnce() -> W,
) -> Who {
    let command = if settings.hides_arguments {
        words().take(1).map(|word| name_of(&word)).collect()
    } else {
        shortened(words())
    };
    let reason = options.reason.as_deref().or(settings.reason.as_deref());
    Who {
        command,
        ..own_request(settings, reason)
    }
}

/// Removes secrets from a text that others will see, and shortens it.
pub fn masked(text: Option<&str>) -> Option<String> {
    let text = text?;
    let masked = privacy::masked(beginning(text, LOOKED_AT));
    if text.len() <= LOOKED_AT {
        return Some(masked);
    }
    // Drops the last word, which may be the unrecognizable beginning of a secret.
    let end = masked.rfind(char::is_whitespace).unwrap_or(0);
    Some(format!("{}…", masked[..end].trim_end()))
}

/// Part of a text that is searched for secrets, in bytes. Less than this is stored.
const LOOKED_AT: usize = 8000;

/// Returns the first `most` bytes of a text, or slightly fewer.
fn beginning(text: &str, most: usize) -> &str {
    let mut ends = (0..=text.len().min(most)).rev();
    let end = ends.find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Returns a program's name without its directory.
fn name_of(program: &str) -> String {
    program.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Largest part of a command line that is stored for others, in bytes.
const SHOWN: usize = 2000;

/// Returns a command as others may see it: shortened, and without its secrets.
pub fn shortened<'a>(command: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    let mut room = SHOWN;
    let mut words = Vec::new();
    let mut secrets = privacy::Words::default();
    for word in command {
        // The rest isn't shown, so it isn't searched either.
        let shown = beginning(&word, SHOWN);
        let has_more = shown.len() < word.len();
        let masked = secrets.masked(shown);
        if masked.len() > room || has_more {
            words.push(masked.chars().take(room / 4).chain(['…']).collect());
            break;
        }
        room -= masked.len();
        words.push(masked);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(words: &[&str]) -> Vec<String> {
        shortened(words.iter().map(|&word| word.into()))
    }

    #[test]
    fn a_command_is_shown_without_its_secrets_and_not_endlessly() {
        assert_eq!(shown(&["a", "--token", "s3"]), ["a", "--token", "***"]);
        let long = "é".repeat(3000);
        assert_eq!(shown(&["a", &long, "b"])[1..], ["é".repeat(499) + "…"]);
        let secret = format!("TOKEN={long}");
        assert_eq!(shown(&[&secret, "b"]), ["TOKEN=***…"]);
        assert_eq!(shown(&vec!["x"; 3000]).len(), 2001);
    }

    #[test]
    fn a_long_text_is_cut_before_it_is_masked_and_not_within_a_secret() {
        for part in ["a://b:", "a=\"", "--password-command \"echo ", "-p 'a "] {
            // Masking the whole text would take minutes.
            let shown = masked(Some(&part.repeat(20_000))).unwrap();
            assert!(shown.len() <= LOOKED_AT && shown.ends_with('…'), "{shown}");
        }
        let text = |before: usize| "x ".repeat(before / 2) + "a://me:secret@h";
        for before in (LOOKED_AT - 20..LOOKED_AT + 10).step_by(2) {
            let shown = masked(Some(&text(before))).unwrap();
            assert!(
                !shown.contains("secret") && !shown.contains("se"),
                "{shown}"
            );
        }
        assert_eq!(masked(Some(&"x".repeat(LOOKED_AT + 1))).unwrap(), "…");
    }
}
