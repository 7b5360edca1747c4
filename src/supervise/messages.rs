//! Messages and calls of the hook while COMMAND runs.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::hook::{Hook, News};
use crate::decide::renewals::LockNews;
use crate::decide::session::Policy;
use crate::protocol::{Locks, Name, Who};
use crate::report::{self, Verbosity, cancelled, lost};
use crate::sys;

/// Conditions of a supervision, and names for its messages.
pub struct Terms<'a> {
    /// Everything except what begins when the work does.
    pub policy: Policy,
    /// How long the work may take.
    pub timeout: Option<Duration>,
    pub names: &'a [Name],
    pub locks: &'a Locks,
    pub who: &'a Who,
    pub verbosity: Verbosity,
    pub hook: Option<&'a Hook<'a>>,
}

/// The messages of a run, and what they depend on.
pub struct Messages<'a> {
    terms: &'a Terms<'a>,
    /// Last trouble with the locks.
    trouble: Option<LockNews>,
    /// Message for the next answer of Redis, if the user knows that Redis doesn't answer.
    after_silence: Option<&'static str>,
}

impl<'a> Messages<'a> {
    pub fn new(terms: &'a Terms<'a>) -> Self {
        Self {
            terms,
            trouble: None,
            after_silence: None,
        }
    }

    /// Takes in news of the locks. `stood_still`: a request that has timed out says nothing about Redis.
    pub fn note(&mut self, news: &LockNews, stood_still: bool) {
        let verbosity = self.terms.verbosity;
        match news {
            LockNews::Held {
                is_renewed: true, ..
            } => {
                verbosity.verbose("lease renewed");
                // A lock that was lost, or that another run wants, stays so.
                self.trouble.take_if(|it| matches!(it, LockNews::Failed(_)));
            }
            LockNews::Held { .. } => {}
            LockNews::Failed(error) => {
                verbosity.verbose(format_args!("renewal failed: {error}"));
                if !stood_still {
                    self.trouble = Some(news.clone());
                }
            }
            LockNews::Released(name) => {
                verbosity.verbose(format_args!("the command released lock \"{name}\""));
            }
            LockNews::Lost { .. } | LockNews::Cancelled(..) | LockNews::Over(_) => {
                self.trouble = Some(news.clone());
            }
        }
    }

    /// Reports that Redis has given no answer, or no good one, for so long.
    pub fn report_silence(&mut self, lasting: Duration, stop_in: Duration) {
        let [lasting, left] = [lasting, stop_in].map(report::format_duration);
        let locks = match self.terms.names {
            [name] => format!("lock \"{name}\""),
            _ => "its locks".into(),
        };
        let so = if self.terms.policy.only_warn {
            format!("{locks} may be lost")
        } else {
            format!("the command is stopped, as {locks} may be lost")
        };
        let (line, after) = match &self.trouble {
            Some(LockNews::Failed(error)) if !error.kind.is_unreachable() => (
                format!(
                    "no renewal has succeeded for {lasting}; if none does within {left}, {so}: {error}"
                ),
                "renewals succeed again",
            ),
            _ => (
                format!("Redis hasn't answered for {lasting}; if it doesn't within {left}, {so}"),
                "Redis answers again",
            ),
        };
        self.terms.verbosity.info(line);
        self.after_silence = Some(after);
    }

    /// Reports that Redis answers again.
    pub fn report_answer(&mut self) {
        if let Some(line) = self.after_silence.take() {
            self.terms.verbosity.info(line);
        }
    }

    /// Returns true if a lock was taken away: others of the run are still renewed.
    pub fn has_lost_one(&self) -> bool {
        matches!(self.trouble, Some(LockNews::Lost { .. }))
    }

    /// Returns what happened to the lock, in words. `silence`: the reason if no answer says that.
    pub fn loss(&self, silence: &str) -> String {
        let what = match self.terms.names {
            [name] => format!("lock \"{name}\" was"),
            _ => "the locks were".into(),
        };
        match &self.trouble {
            Some(LockNews::Lost { name, loss, .. }) => lost(name, loss),
            Some(LockNews::Cancelled(name, by)) => cancelled(name, by),
            Some(LockNews::Over(name)) => {
                format!("the run that held lock \"{name}\" is over")
            }
            Some(LockNews::Failed(error)) => {
                format!("{what} not renewed in time: {error}")
            }
            Some(LockNews::Held { .. } | LockNews::Released(_)) | None => {
                format!("{what} not renewed in time: {silence}")
            }
        }
    }

    /// Returns the client that has taken the lock, or wants the run to end, if that is known.
    pub fn by(&self) -> Option<String> {
        match self.trouble.as_ref()? {
            LockNews::Lost { loss, .. } => {
                let holder = loss.holder.as_ref().map(|holder| &holder.who);
                let by = loss.forced_by.as_ref().or(holder);
                by.map(report::client_in_words)
            }
            LockNews::Cancelled(_, by) => Some(report::client_in_words(by)),
            _ => None,
        }
    }

    /// Tells the hook, if there is one. `ran`: how long COMMAND has run.
    pub fn tell(&self, event: &'static str, ran: Option<Duration>) {
        if let Some(hook) = self.terms.hook {
            let by = self.by();
            let news = News {
                event,
                ran,
                by,
                exit: None,
            };
            hook.tell(&news, self.terms.verbosity);
        }
    }
}

/// Says that a signal of another process or of the kernel killed COMMAND, unless a shell would be silent, too: cron mails
/// only what is printed.
pub fn report_foreign_kill(number: i32) {
    let name = match Signal::try_from(number) {
        Ok(Signal::SIGINT | Signal::SIGPIPE) => return,
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {number}"),
    };
    let hint = match number {
        sys::SIGKILL => "; redlock didn't send it: see dmesg if memory may have run out",
        _ => "",
    };
    report::error(format_args!("the command was killed by {name}{hint}"));
}
