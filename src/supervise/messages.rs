//! Messages and hook calls while COMMAND is running.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::hook::{Hook, News};
use crate::decide::renewals::LockNews;
use crate::decide::session::Policy;
use crate::protocol::{Locks, Name, Who};
use crate::report::{self, Verbosity, cancelled, lost};
use crate::sys;

/// Conditions of a supervision, and the names for its messages.
pub struct SupervisionTerms<'a> {
    pub policy: Policy,
    pub names: &'a [Name],
    pub locks: &'a Locks,
    pub who: &'a Who,
    pub verbosity: Verbosity,
    pub hook: Option<&'a Hook<'a>>,
}

/// A run's messages, and the state they depend on.
pub struct Messages<'a> {
    terms: &'a SupervisionTerms<'a>,
    /// Most recent trouble with the locks.
    trouble: Option<LockNews>,
    /// Message for the next answer of Redis, set if the user knows that Redis isn't answering.
    after_silence: Option<&'static str>,
}

impl<'a> Messages<'a> {
    pub fn new(terms: &'a SupervisionTerms<'a>) -> Self {
        Self {
            terms,
            trouble: None,
            after_silence: None,
        }
    }

    /// Records news about the locks. `stood_still`: redlock was suspended, so a timeout says nothing about Redis.
    pub fn note(&mut self, news: &LockNews, stood_still: bool) {
        let verbosity = self.terms.verbosity;
        match news {
            LockNews::Held {
                is_renewed: true, ..
            } => {
                verbosity.verbose("lease renewed");
                // A success doesn't undo the loss of a lock, or another client's request to end this run.
                self.trouble.take_if(|it| matches!(it, LockNews::Failed(_)));
            }
            LockNews::Held { .. } => {}
            LockNews::Failed(error) => {
                verbosity.verbose(format_args!("renewal failed: {error}"));
                // A failure doesn't hide the loss of a lock, or another client's request to end this run.
                if !stood_still && matches!(self.trouble, None | Some(LockNews::Failed(_))) {
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

    /// Reports that no renewal has succeeded for `lasting`.
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

    /// Reports that Redis is answering again.
    pub fn report_answer(&mut self) {
        if let Some(line) = self.after_silence.take() {
            self.terms.verbosity.info(line);
        }
    }

    /// Returns true if a lock was taken away. The other locks of the run are still renewed.
    pub fn has_lost_one(&self) -> bool {
        matches!(self.trouble, Some(LockNews::Lost { .. }))
    }

    /// Returns the reason for the loss of the lock, in words. `silence` is the reason if no answer gives one.
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

    /// Returns the client that has taken the lock, or has asked the run to end, if known.
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

    /// Calls the hook, if there is one. `ran`: time that COMMAND has run.
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

/// Reports that a signal from another process or the kernel killed COMMAND, because
/// cron mails only what is printed. Stays silent for SIGINT and SIGPIPE, as shells do.
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
