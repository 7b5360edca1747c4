//! Every exit status of redlock, and how a child's status becomes redlock's. Pure.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The end of a redlock command. The numbers are those of sysexits.h and timeout(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Success,
    /// COMMAND exited with this status.
    Command(u8),
    /// COMMAND was killed by this signal.
    Signal(i32),
    /// The work, or the wait for the lock, ended by this signal, which redlock got, too; or redlock got it
    /// while it released the lock. redlock also ends by the signal, or by this status if it can't.
    Interrupted(i32),
    /// `redlock fence`: a later holder has used its fence.
    StaleFence,
    /// `redlock doctor`: a check failed.
    Unfit,
    /// `redlock status --no-success-for`: no run has succeeded in time.
    Late,
    /// No run has ever used the name, so it is probably mistyped.
    NeverUsed,
    /// `redlock status --older-than`: a lock has been held, or waited for, for so long.
    Older,
    /// Wrong usage: options, names, durations.
    Usage,
    /// Redis can't be reached, or the command needs Linux and this is another system.
    Unreachable,
    /// The lock stayed busy; the status is `--conflict-exit-code`.
    Busy(u8),
    /// Redis refused the request: authentication or permissions.
    Refused,
    /// Bad configuration: file, URL, certificates, a name that another program uses.
    Config,
    /// The lock was lost while COMMAND ran, or another client holds the lock to release.
    Lost,
    /// A newer run had COMMAND stopped.
    Cancelled,
    /// `--max-runtime` stopped COMMAND.
    Timeout,
    /// redlock itself failed.
    Internal,
    /// COMMAND was found but can't be executed.
    CannotExecute,
    /// COMMAND was not found.
    NotFound,
}

impl Exit {
    /// Returns the number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::StaleFence | Self::Unfit | Self::NeverUsed | Self::Late | Self::Older => 1,
            Self::Command(status) | Self::Busy(status) => status,
            Self::Signal(signal) | Self::Interrupted(signal) => {
                u8::try_from(128 + signal).unwrap_or(u8::MAX)
            }
            Self::Usage => 64,
            Self::Unreachable => 69,
            Self::Refused => 77,
            Self::Config => 78,
            Self::Lost | Self::Cancelled => 79,
            Self::Timeout => 124,
            Self::Internal => 125,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Command(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_status_is_ours_and_its_signal_is_128_plus_n() {
        assert_eq!(Exit::from(ExitStatus::from_raw(3 << 8)).code(), 3);
        assert_eq!(Exit::from(ExitStatus::from_raw(255 << 8)).code(), 255);
        assert_eq!(Exit::from(ExitStatus::from_raw(15)).code(), 143);
        assert_eq!(Exit::from(ExitStatus::from_raw(9 | 0x80)).code(), 137);
    }
}
