//! The subcommands, a module each, and what they share: the choice of holders, and corrected command lines.

mod acquire;
mod asked;
mod change;
mod completions;
mod corrections;
mod doctor;
mod extend;
mod fence;
mod freeze;
#[cfg(test)]
#[path = "../../tests/fuzz/command.rs"]
mod fuzz;
mod guard;
mod history;
mod json;
mod looks;
mod manual;
mod mistakes;
mod never_used;
mod release;
mod run;
mod selection;
mod status;
mod stop;
mod version;

use crate::report;

pub use self::acquire::{acquire, fail_eval};
pub use self::completions::{COMPLETES, complete, completions};
pub use self::doctor::doctor;
pub use self::extend::extend;
pub use self::fence::fence;
pub use self::freeze::{freeze, thaw};
pub use self::guard::guard;
pub use self::history::history;
pub use self::manual::help;
pub use self::mistakes::{no_command, usage};
pub use self::release::release;
pub use self::run::run;
pub use self::status::status;
pub use self::stop::stop;
pub use self::version::version;

/// Adds this `--url`, without its password, to all commands that messages suggest.
pub fn remember_url(url: &str) {
    report::remember_url(crate::job::privacy::masked_url(url));
}
