//! A run's holds: its locks, their common lease, and the renewer that extends the lease.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::environment::{Environment, JobHold, entry, list_of};
use crate::clock::{Moment, now};
use crate::decide::lease::Lease;
use crate::decide::renewals::{LockNews, Renewals, Task};
use crate::protocol::{Claim, Client, Error, Guard, Incoming, Name, Push, Who};
use crate::supervise::child::Child;
use crate::supervise::renewer::{CompletedTask, RenewalTask, Renewer};
use crate::supervise::watchdog::Watchdog;
use crate::variables::{FENCE, GUARD, HELD, NAME, SLOT, TOKEN, WAITED_MS};

/// Part of the time until the work must be dead that each step of a task may take if there is
/// no renewer thread. Connecting and two answers are one step each, and a retry doubles them.
const WITHOUT_THREAD: u32 = 12;

/// A lock that this run holds.
pub struct HeldLock {
    pub claim: Claim,
    pub fence: u64,
    pub slot: u32,
    /// An outer run has acquired the lock, and will release it.
    pub reentrant: bool,
    /// Guard of the outer run's hold, if that run can't stop this work.
    pub guard: Option<Guard>,
    /// Time spent waiting for the lock; zero if it was free.
    pub waited: Duration,
}

/// All locks of a run, in the order of their acquisition. The owner must release or leave them all.
#[must_use = "locks must be released or left"]
pub struct HeldLocks {
    pub all: Vec<HeldLock>,
    /// Client for these locks; not connected while the renewer has its connection.
    pub client: Client,
    /// The watchdog is a child of the renewer's thread, and ends
    /// before that thread: fields are dropped in this order.
    pub(super) watchdog: Option<Watchdog>,
    renewer: Option<Renewer>,
    /// Result of a task that ran without the renewer.
    completed: Option<CompletedTask>,
    pub renewals: Renewals,
    /// The server has answered a request for a lock.
    pub answered: bool,
}

impl HeldLocks {
    /// Returns an empty set of holds.
    pub fn none(client: Client) -> Self {
        Self {
            all: Vec::new(),
            client,
            renewer: None,
            completed: None,
            renewals: Renewals::new(),
            watchdog: None,
            answered: false,
        }
    }

    /// Adds an acquired lock.
    pub fn add(&mut self, hold: HeldLock, lease: Lease) {
        self.renewals.add(hold.claim.lock().name().clone(), lease);
        self.all.push(hold);
    }

    /// Returns the common lease of all locks, which ends when the first of them does.
    pub fn lease(&self) -> Option<Lease> {
        self.renewals.lease()
    }

    /// Returns the ids of these locks and guards. A process has one of them in its environment if it is part of
    /// the work. Locks of an outer run aren't included, because that run's other work has their ids as well.
    pub fn ids(&self) -> Vec<String> {
        let id = |hold: &HeldLock| match &hold.guard {
            Some(guard) => Some(guard.id.clone()),
            None => (!hold.reentrant).then(|| hold.claim.id()),
        };
        self.all.iter().filter_map(id).collect()
    }

    /// Returns the held locks with these names, in the order of the names.
    pub fn in_order(&self, names: &[Name]) -> impl Iterator<Item = &HeldLock> {
        let hold = move |name: &Name| {
            let mut all = self.all.iter();
            all.find(|hold| hold.claim.lock().name() == name)
        };
        names.iter().filter_map(hold)
    }

    /// Returns the variables for a job of this client; those of several locks are lists in the
    /// order of `names`. `inherited` are the holds of the surrounding runs. `slots` adds the slots.
    pub fn environment(
        &self,
        names: &[Name],
        inherited: &[JobHold],
        who: &Who,
        slots: bool,
    ) -> Environment {
        let of_each = |value: &dyn Fn(&HeldLock) -> OsString| -> OsString {
            let values: Vec<OsString> = self.in_order(names).map(value).collect();
            values.join(OsStr::new(" "))
        };
        let token = |hold: &HeldLock| OsString::from_vec(hold.claim.token().as_bytes().to_vec());
        let own = || self.all.iter().filter(|hold| !hold.reentrant);
        // A previous hold is over if its lock was acquired again.
        let is_over = |hold: &&JobHold| own().any(|new| new.claim.lock().name() == &hold.name);
        // True for a lock of a surrounding run, unless `acquire` took the lock for this same process.
        let is_reentered = |hold: &JobHold| {
            let mut reentered = self.all.iter().filter(|lock| lock.reentrant);
            !hold.token.is_of(who) && reentered.any(|lock| lock.claim.token() == &hold.token)
        };
        let around = inherited.iter().filter(|hold| !is_over(hold));
        let around = around.map(|hold| {
            let is_reentered = hold.is_reentered || is_reentered(hold);
            entry(&hold.name, &hold.token, is_reentered)
        });
        let own = own().map(|hold| entry(hold.claim.lock().name(), hold.claim.token(), false));
        let held: Vec<OsString> = around.chain(own).collect();
        let mut environment = vec![
            (NAME, list_of(names)),
            (TOKEN, of_each(&token)),
            (FENCE, of_each(&|hold| hold.fence.to_string().into())),
            (WAITED_MS, self.waited_ms().to_string().into()),
            (HELD, held.join(OsStr::new(" "))),
        ];
        let guards = self.all.iter().filter_map(|hold| hold.guard.as_ref());
        let guards: Vec<&str> = guards.map(|guard| &*guard.id).collect();
        if !guards.is_empty() {
            environment.push((GUARD, guards.join(" ").into()));
        }
        if slots {
            environment.push((SLOT, of_each(&|hold| hold.slot.to_string().into())));
        }
        environment
    }

    /// Returns the total time spent waiting for the locks, in milliseconds; 0 only if all were free.
    pub fn waited_ms(&self) -> u128 {
        let waited: Duration = self.all.iter().map(|hold| hold.waited).sum();
        waited.as_millis().max(u128::from(!waited.is_zero()))
    }

    /// Lets guards extend their holds from now on even if the
    /// outer runs are over, because the killed work hasn't ended.
    pub fn insist(&mut self) {
        let mut is_new = false;
        for guard in self.all.iter_mut().filter_map(|hold| hold.guard.as_mut()) {
            is_new |= guard.insist();
        }
        if is_new {
            self.renewals.renew_now(now());
        }
    }

    /// Renews the leases in the background if that is due.
    pub fn renew_if_due(&mut self) {
        if self.renewals.renewal_is_due(now()) {
            self.start_task(Task::Renew);
        }
    }

    /// Leaves all locks to other processes, or to the end of their leases.
    pub fn leave(&mut self) {
        self.all.clear();
    }

    /// Returns the renewer. Starts its thread if there is none yet.
    fn renewer(&mut self) -> io::Result<&mut Renewer> {
        if self.renewer.is_none() {
            self.renewer = Some(Renewer::start()?);
        }
        self.renewer.as_mut().ok_or(io::ErrorKind::NotFound.into())
    }

    fn start_task(&mut self, task: Task) {
        if self.renewals.is_under_way() {
            return;
        }
        let limit = self.renewals.start(now());
        let mut task = RenewalTask {
            task,
            client: self.client.hand_over(),
            claims: self.all.iter().map(|hold| hold.claim.clone()).collect(),
            guards: self
                .all
                .iter()
                .filter_map(|hold| hold.guard.clone())
                .collect(),
            ttl: self.renewals.ttl(),
            on_renewal: self.watchdog.as_ref().and_then(Watchdog::tells_renewal),
        };
        if let Ok(renewer) = self.renewer() {
            task.client.limit_to(limit);
            renewer.start_task(task);
        } else {
            // No thread could be started, so the main thread waits for the answer, for only a part of the lease.
            let left = self
                .lease()
                .map_or(limit, |lease| lease.deadline().since(now()));
            task.client.limit_to(limit.min(left / WITHOUT_THREAD));
            self.completed = Some(task.carry_out());
        }
    }

    /// Starts a watchdog, which kills this child if redlock can't. If that fails, the next renewal tries again.
    pub fn start_watchdog(&mut self, child: &Child) {
        if !self.watchdog.as_mut().is_some_and(Watchdog::is_alive) {
            let renewer = self.renewer();
            let started = renewer.and_then(|renewer| Watchdog::start(child, renewer));
            self.watchdog = started.ok();
        }
    }

    /// Handles results of renewals and checks, and errors between them. Forgets locks that are lost.
    pub fn news(&mut self) -> Vec<LockNews> {
        let of_renewer = self.renewer.as_mut().and_then(Renewer::completed);
        if !self.renewals.has_started() {
            return Vec::new();
        }
        let mut news = Vec::new();
        if let Some(completed) = self.completed.take().or(of_renewer) {
            news = self.renewals.end(completed.answers, now());
            self.client = completed.client;
            self.all
                .retain(|hold| self.renewals.holds(hold.claim.lock().name()));
        }
        if let Err(error) = self.take_pushes() {
            self.client.disconnect();
            news.push(self.renewals.fail(error, now()));
        } else if self.renewals.take_check(now()) {
            self.start_task(Task::Check);
        }
        news
    }

    /// Handles the messages that the server has pushed.
    fn take_pushes(&mut self) -> Result<(), Error> {
        while let Some(incoming) = self.client.receive()? {
            if let Incoming::Push(Push::KeyChanged) = incoming {
                self.renewals.on_key_changed(now());
            }
        }
        Ok(())
    }

    /// Returns when a renewal or a check is due.
    pub fn due(&self) -> Option<Moment> {
        if self.completed.is_some() {
            return Some(now());
        }
        // During a renewal nothing else is due: the renewer wakes this thread.
        self.renewals.due()
    }

    /// Returns the descriptors to poll: one becomes readable when `news` may have something to report.
    pub fn poll_fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        // The server pushes nothing before the first renewal.
        let listens = self.renewals.has_started();
        let client = self.client.fds().filter(move |_| listens);
        std::iter::once(self.renewer.as_ref().map(AsFd::as_fd)).chain(client.map(Some))
    }

    /// Takes the client back from the renewer when the current renewal has ended,
    /// waiting for at most `within`. Calls `is_slow` if that takes longer than a moment.
    pub fn reclaim_client(&mut self, within: Option<Duration>, is_slow: impl FnOnce()) {
        if let Some(renewer) = &mut self.renewer
            && let Some(completed) = renewer.finish(within, is_slow)
        {
            self.client = completed.client;
            self.renewals.end(Vec::new(), now());
        }
    }
}

/// Asserts that no lock is forgotten: each end of a run must release or leave its locks.
impl Drop for HeldLocks {
    fn drop(&mut self) {
        let is_finished = self.all.is_empty() || std::thread::panicking();
        debug_assert!(is_finished, "a lock is neither released nor left");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::lease::{Terms, try_timeout};
    use crate::protocol::{Access, Locks, Token};
    use crate::supervise::environment::{Origin, entries, origin_of};

    fn locks() -> Locks {
        let access = Access {
            url: "unix:///nobody",
            ..Access::default()
        };
        Locks::new(&access, None, 0).unwrap()
    }

    fn hold(name: &str) -> HeldLock {
        hold_with(name, "t:h:1")
    }

    fn hold_with(name: &str, token: &str) -> HeldLock {
        let lock = locks().lock(name.parse().unwrap());
        HeldLock {
            claim: Claim::resume(lock, Token::read(token.into()).unwrap()),
            fence: 1,
            slot: 1,
            reentrant: true,
            guard: None,
            waited: Duration::ZERO,
        }
    }

    fn terms(ttl: Duration) -> Terms {
        Terms {
            ttl,
            kill_after: Duration::ZERO,
            clock_skew: Duration::ZERO,
        }
    }

    #[test]
    fn what_is_written_for_a_job_is_read_by_it() {
        let mut holds = HeldLocks::none(locks().client());
        for (name, token, fence, reentrant) in
            [("a=b~", "t1:h:1", 7, false), ("c~d=e", "t2:h:1", 8, true)]
        {
            holds.all.push(HeldLock {
                fence,
                reentrant,
                waited: Duration::from_millis(6),
                ..hold_with(name, token)
            });
        }
        let [a, b] = [0, 1].map(|at| holds.all[at].claim.clone());
        let names = [b.lock().name().clone(), a.lock().name().clone()];
        let job_hold = |claim: &Claim, is_reentered| JobHold {
            name: claim.lock().name().clone(),
            token: claim.token().clone(),
            is_reentered,
        };
        let who = Who::default();
        let environment = holds.environment(&names, &[job_hold(&b, false)], &who, false);
        let value = |name: &str| {
            let mut pairs = environment.iter();
            let pair = pairs.find(|(other, _)| *other == name);
            pair.map(|(_, value)| value.to_str().unwrap())
        };
        assert_eq!(value(NAME), Some("c~d=e a=b~"));
        assert_eq!(value(TOKEN), Some("t2:h:1 t1:h:1"));
        assert_eq!(value(FENCE), Some("8 7"));
        assert_eq!(value(WAITED_MS), Some("12"));
        assert_eq!(value(SLOT), None);
        assert_eq!(value(HELD), Some("c~d=e~t2:h:1 a=b~=t1:h:1"));
        let held: Vec<JobHold> = entries(value(HELD).unwrap().as_bytes()).flatten().collect();
        assert_eq!(held, [job_hold(&b, true), job_hold(&a, false)]);
        // An inner run passes on the holds that it doesn't use itself.
        let nothing = HeldLocks::none(locks().client());
        let inner = nothing.environment(&names[1..], &held, &who, false);
        assert_eq!(inner[4].1.to_str(), value(HELD));
        let process = format!("X=1\0{HELD}={}\0", value(HELD).unwrap());
        assert_eq!(holds.ids(), [a.id()]);
        assert_eq!(origin_of(process.as_bytes(), &holds.ids()), Origin::Ours);
        let other = ["c0ffee".to_owned()];
        assert_eq!(origin_of(process.as_bytes(), &other), Origin::OfOthers);
        assert_eq!(origin_of(b"X=1\0", &holds.ids()), Origin::Unsaid);
        holds.leave();
    }

    #[test]
    #[should_panic(expected = "a lock is neither released nor left")]
    fn a_lock_is_not_forgotten() {
        let mut holds = HeldLocks::none(locks().client());
        holds.add(hold("a"), Lease::new(now(), terms(Duration::from_secs(4))));
    }

    #[test]
    fn a_guard_of_several_holds_tries_no_longer_than_the_shortest_lease_permits() {
        let [short, long] = [4, 60].map(Duration::from_secs);
        for ttls in [[short, long], [long, short]] {
            let mut holds = HeldLocks::none(locks().client());
            for (ttl, name) in ttls.into_iter().zip(["a", "b"]) {
                holds.add(hold(name), Lease::of_another(now(), ttl, terms(ttl)));
            }
            assert_eq!(holds.renewals.start(now()), try_timeout(short));
            holds.leave();
        }
    }
}
