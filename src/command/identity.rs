//! The identity that others see: host, user, command.

use std::borrow::Cow;

use super::privacy;
use crate::ci;
use crate::cli;
use crate::config::Settings;
use crate::protocol::Who;

/// Who we are, to others. A name that the settings give stands in place of that of a CI job.
pub(super) fn own_identity(settings: &Settings) -> Who {
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

/// Returns this process's identity, with a reason for what it changes.
pub(super) fn own_request(settings: &Settings, reason: Option<&str>) -> Who {
    Who {
        reason: masked(reason),
        ..own_identity(settings)
    }
}

/// Returns the user, with the one who called sudo in front: `anna (root)`.
fn user(variable: impl Fn(&str) -> Option<String>) -> String {
    // The password database only if the environment has no name: reading it takes time.
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

/// The same with what we are about to do, as far as others may see it. `words` is the command.
pub(super) fn own_job<'a, W: Iterator<Item = Cow<'a, str>>>(
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

/// A text for others to see, without its secrets, and not endless.
pub(super) fn masked(text: Option<&str>) -> Option<String> {
    let text = text?;
    let masked = privacy::masked(beginning(text, LOOKED_AT));
    if text.len() <= LOOKED_AT {
        return Some(masked);
    }
    // The last word may be the beginning of a secret, by which it can't be known.
    let end = masked.rfind(char::is_whitespace).unwrap_or(0);
    Some(format!("{}…", masked[..end].trim_end()))
}

/// How much of a text is looked at for secrets, in bytes; less of it is stored.
const LOOKED_AT: usize = 8000;

/// At most so many bytes of a text.
fn beginning(text: &str, most: usize) -> &str {
    let mut ends = (0..=text.len().min(most)).rev();
    let end = ends.find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// A program's name, without its directory.
fn name_of(program: &str) -> String {
    program.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The most of a command line that is stored for others to see, in bytes.
const SHOWN: usize = 2000;

/// The command for others to see: without its secrets, and not endless.
pub(super) fn shortened<'a>(command: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    let mut room = SHOWN;
    let mut words = Vec::new();
    let mut secrets = privacy::Words::default();
    for word in command {
        // What is behind that is not shown, so it isn't looked at either.
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
            // All of it would take minutes.
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

    #[test]
    fn a_programs_name_has_no_directory() {
        for (program, name) in [("./deploy.sh", "deploy.sh"), ("sh", "sh"), ("/a/b", "b")] {
            assert_eq!(name_of(program), name);
        }
    }
}
