//! What a run holds: its locks, the lease they have together, and the renewer that extends it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::clock::{Moment, now};
use crate::command::environment::JobLock;
use crate::lease::{Lease, LeaseEvent, confirm_timeout, try_timeout};
use crate::lock::{Claim, Client, Error, ErrorKind, Incoming, Loss, Name, Who};
use crate::process;
use crate::renewer::{Renewer, Report, Task};
use crate::tree::Process;
use crate::wait::Pace;

/// A lock that we hold.
pub struct HeldLock {
    pub claim: Claim,
    pub fence: u64,
    pub slot: u32,
    /// It was taken by an outer run, which will release it.
    pub reentrant: bool,
    /// How long it was waited for; zero when it was free.
    pub waited: Duration,
    /// When a run last succeeded under it, as far as that was asked.
    pub success: Option<Moment>,
}

impl HeldLock {
    /// As its job finds it.
    pub(super) fn as_job_lock(&self, who: &Who) -> JobLock<'_> {
        JobLock {
            claim: &self.claim,
            fence: self.fence,
            slot: self.slot,
            reentrant: self.reentrant,
            is_of_others: !self.claim.token().is_of(who),
        }
    }
}

/// What a report says beyond its meaning for the lease: for messages.
pub enum LockTrouble {
    Unreachable(Error),
    Lost(Name, Loss),
    Cancelled(Name, Box<Who>),
    Released(Name),
}

/// All locks of a run, in the order in which they were taken.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct HeldLocks {
    pub all: Vec<HeldLock>,
    /// The lease of all together: it ends when the first of them does.
    pub lease: Option<Lease>,
    /// The client; not open while the renewer has it.
    pub client: Client,
    /// The length of each lease by a renewal.
    ttl: Duration,
    renewer: Option<Renewer>,
    /// A lock was added since the task that is under way was started: what comes of that isn't about all.
    task_is_partial: bool,
    /// How long a granted lock is ours, until the first renewal has confirmed it.
    grant: Option<Duration>,
    /// When to check whether all is still ours, as the server has pushed that one of our keys changed.
    check_due: Option<Moment>,
    /// A renewal is due since before the task that is under way has ended.
    renewal_waits: bool,
    /// The connection's password may soon be over, and the lease was just renewed: there is time for it.
    reconnect_due: bool,
    /// The minimum time between two checks, however often the keys change.
    checks: Pace,
    /// The server has answered a question of ours: it was reached.
    pub answered: bool,
    /// Each lock has its mark on this host.
    pub marked: bool,
}

impl HeldLocks {
    /// Nothing is held yet; the leases will be of this length.
    pub fn none(client: Client, ttl: Duration) -> Self {
        Self {
            all: Vec::new(),
            lease: None,
            client,
            ttl,
            renewer: None,
            task_is_partial: false,
            grant: None,
            check_due: None,
            renewal_waits: false,
            reconnect_due: false,
            checks: Pace::default(),
            answered: false,
            marked: false,
        }
    }

    /// A lock is ours.
    pub fn add(&mut self, hold: HeldLock, lease: Lease) {
        self.task_is_partial |= self.is_asking();
        self.all.push(hold);
        self.lease = Some(self.lease.map_or(lease, |all| all.merged_with(lease)));
    }

    /// A lock is ours by a grant that is good for this long, and that the first renewal confirms.
    pub fn add_grant(&mut self, hold: HeldLock, lease: Lease, lasting: Duration, client: Client) {
        self.add(hold, lease);
        self.client = client;
        self.grant = Some(lasting);
    }

    /// How long all of them were waited for, in milliseconds; 0 only if all were free.
    pub fn waited_ms(&self) -> u128 {
        let waited: Duration = self.all.iter().map(|hold| hold.waited).sum();
        waited.as_millis().max(u128::from(!waited.is_zero()))
    }

    /// A lock is not ours any more.
    fn forget(&mut self, name: &Name) {
        let (gone, kept) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|hold| hold.claim.lock().name() == name);
        self.all = kept;
        let gone: Vec<HeldLock> = gone;
        for hold in &gone {
            self.remove_mark(hold);
        }
    }

    /// What a report means for the lease of all; a lock that is gone is forgotten.
    pub fn record(&mut self, report: Report) -> (LeaseEvent, Option<LockTrouble>) {
        match report {
            Report::Renewed(sent) => {
                self.grant = None;
                (LeaseEvent::Renewed(sent), None)
            }
            Report::RenewedInPart => (LeaseEvent::RenewedInPart, None),
            Report::Confirmed(sent, left) => (LeaseEvent::Confirmed(sent, left), None),
            Report::Failed(error) => {
                let trouble = LockTrouble::Unreachable(error);
                (LeaseEvent::RenewalFailed, Some(trouble))
            }
            Report::Cancelled(name, by) => {
                let trouble = LockTrouble::Cancelled(name, by);
                (LeaseEvent::Cancelled, Some(trouble))
            }
            Report::Lost(name, loss) => {
                self.forget(&name);
                (LeaseEvent::Lost, Some(LockTrouble::Lost(name, loss)))
            }
            Report::Released(name) => {
                self.forget(&name);
                (LeaseEvent::Released, Some(LockTrouble::Released(name)))
            }
        }
    }

    /// Whether a renewal or a check is under way, or waits for one that is.
    pub fn is_asking(&self) -> bool {
        self.renewer.as_ref().is_some_and(Renewer::is_busy)
    }

    /// Has the leases renewed, in the background.
    ///
    /// # Errors
    /// The thread can't be started, which counts as a failed renewal.
    pub fn renew(&mut self) -> Result<(), Error> {
        // Behind a check that is under way: a renewal that was forgotten would be the last one.
        self.renewal_waits = self.renewer.as_ref().is_some_and(Renewer::is_busy);
        self.start_task(Task::Renew)
    }

    /// Notes down on this host what works under the locks, as it was found from this moment on.
    pub fn leave_marks(&mut self, noted: Moment, members: &[Process]) {
        let first = !std::mem::replace(&mut self.marked, true);
        for hold in self.all.iter().filter(|hold| !hold.reentrant) {
            process::leave_mark(&hold.claim.id(), noted, members);
        }
        // Now, and not at the end of the run, when a waiter may wait for us.
        if first {
            process::remove_old_marks();
        }
    }

    /// Leaves all locks to their leases: there may be a process at work under them that we can't stop.
    pub fn leave_to_expire(&mut self) {
        self.all.clear();
    }

    /// Removes the mark of a hold that is over.
    pub fn remove_mark(&self, hold: &HeldLock) {
        if self.marked && !hold.reentrant {
            process::remove_mark(&hold.claim.id());
        }
    }

    fn start_task(&mut self, task: Task) -> Result<(), Error> {
        if self.renewer.as_ref().is_some_and(Renewer::is_busy) {
            return Ok(());
        }
        let renewer = match &mut self.renewer {
            Some(renewer) => renewer,
            None => match Renewer::start(self.ttl) {
                Ok(renewer) => self.renewer.insert(renewer),
                Err(error) => {
                    let what = format!("can't start the renewing thread: {error}");
                    return Err(Error::new(ErrorKind::Internal, what));
                }
            },
        };
        let mut client = self.client.hand_over();
        client.limit_to(match self.grant {
            Some(grant) => confirm_timeout(grant, self.ttl),
            None => try_timeout(self.ttl),
        });
        let claims: Vec<Claim> = self.all.iter().map(|hold| hold.claim.clone()).collect();
        self.task_is_partial = false;
        renewer.start_task(task, client, claims);
        Ok(())
    }

    /// The results of renewals and checks, and what went wrong between them.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        let Some(renewer) = &mut self.renewer else {
            return reports;
        };
        if let Some(completed) = renewer.completed() {
            let is_renewal = |report: &Report| matches!(report, Report::Renewed(_));
            self.reconnect_due =
                completed.client.wants_new_password() && completed.reports.iter().any(is_renewal);
            let is_partial = self.task_is_partial;
            let of_all = |report| {
                if is_partial {
                    in_part(report)
                } else {
                    Some(report)
                }
            };
            reports.extend(completed.reports.into_iter().filter_map(of_all));
            self.client = completed.client;
        }
        let is_busy = renewer.is_busy();
        if let Err(error) = self.take_pushes() {
            self.client.disconnect();
            // A service may have closed it because its password is over; but not again and again.
            let is_over = self.client.has_password_command()
                && self.checks.ask_at(now()) <= now()
                && self.start_task(Task::Renew).is_ok();
            if !is_over {
                reports.push(Report::Failed(error));
            }
        } else if !is_busy && std::mem::take(&mut self.renewal_waits) {
            if let Err(error) = self.start_task(Task::Renew) {
                reports.push(Report::Failed(error));
            }
        } else if !is_busy && std::mem::take(&mut self.reconnect_due) {
            if let Err(error) = self.start_task(Task::Reconnect) {
                reports.push(Report::Failed(error));
            }
        } else if !is_busy && self.check_due.is_some_and(|at| now() >= at) {
            self.check_due = None;
            if let Err(error) = self.start_task(Task::Check) {
                reports.push(Report::Failed(error));
            }
        }
        reports
    }

    /// Takes in what the server pushes.
    fn take_pushes(&mut self) -> Result<(), Error> {
        while let Some(incoming) = self.client.receive()? {
            if let (Incoming::KeyChanged, None) = (incoming, self.check_due) {
                self.check_due = Some(self.checks.ask_at(now()));
            }
        }
        Ok(())
    }

    /// When a check is due.
    pub fn due(&self) -> Option<Moment> {
        // The renewer has to be done first, and wakes us.
        let is_busy = self.renewer.as_ref().is_some_and(Renewer::is_busy);
        self.check_due.filter(|_| !is_busy)
    }

    /// One of these becomes readable when there may be something to report.
    pub fn poll_fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        // The server pushes nothing before the first renewal.
        let listens = self.renewer.is_some();
        let client = self.client.fds().filter(move |_| listens);
        std::iter::once(self.renewer.as_ref().map(AsFd::as_fd)).chain(client.map(Some))
    }

    /// Takes the client back from the renewer, once a renewal that is under way has ended. Calls
    /// `is_slow` when that takes longer than a moment.
    pub fn reclaim_client(&mut self, is_slow: impl FnOnce()) {
        if !self.client.is_open()
            && let Some(renewer) = &mut self.renewer
            && let Some(completed) = renewer.finish(is_slow)
        {
            self.client = completed.client;
        }
    }
}

/// What a report says of all that is held, where the task wasn't for all of it.
fn in_part(report: Report) -> Option<Report> {
    match report {
        Report::Renewed(_) => Some(Report::RenewedInPart),
        Report::Confirmed(..) => None,
        of_one => Some(of_one),
    }
}
