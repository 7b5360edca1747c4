//! Who we are, to others: host, user, command.

use std::borrow::Cow;

use crate::ci;
use crate::lock::Who;

/// Who we are, to others.
pub(super) fn own_identity() -> Who {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Who {
        host: nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        // The password database only where the environment has no name: reading it takes time.
        user: variable("USER")
            .or_else(|| variable("LOGNAME"))
            .or_else(|| {
                let user = nix::unistd::User::from_uid(nix::unistd::getuid());
                user.ok().flatten().map(|user| user.name)
            })
            .unwrap_or_else(|| nix::unistd::getuid().to_string()),
        pid: std::process::id(),
        url: ci::link(variable),
        ..Who::default()
    }
}

/// The most of a command line that is stored for others to see, in bytes.
const SHOWN: usize = 2000;

/// The command for others to see: not endless.
pub(super) fn shortened<'a>(command: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    let mut room = SHOWN;
    let mut words = Vec::new();
    for word in command {
        if word.len() > room {
            words.push(word.chars().take(room / 4).chain(['…']).collect());
            break;
        }
        room -= word.len();
        words.push(word.into_owned());
    }
    words
}
