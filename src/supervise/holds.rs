//! The holds of a run: its locks, their common lease, and the renewer that extends it.

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
use crate::supervise::renewer::{Completed, RenewalTask, Renewer};
use crate::supervise::watchdog::Watchdog;
use crate::variables::{FENCE, GUARD, HELD, NAME, SLOT, TOKEN, WAITED_MS};

/// Each step of a task that is carried out without a thread of its own may take this part of the time until the work
/// has to be dead: for connecting and for two answers, and once more for each.
const WITHOUT_THREAD: u32 = 12;

/// A lock that we hold.
pub struct HeldLock {
    pub claim: Claim,
    pub fence: u64,
    pub slot: u32,
    /// It was taken by an outer run, which will release it.
    pub reentrant: bool,
    /// That run can't stop our work, which guards its hold.
    pub guard: Option<Guard>,
    /// How long it was waited for; zero when it was free.
    pub waited: Duration,
}

/// All locks of a run, in the order in which they were taken. Whoever has them releases all of them, or leaves them.
#[must_use = "locks must be released or left"]
pub struct HeldLocks {
    pub all: Vec<HeldLock>,
    /// The client; not open while the renewer has it.
    pub client: Client,
    /// It ends before the renewer's thread, whose child it is.
    pub(super) watchdog: Option<Watchdog>,
    renewer: Option<Renewer>,
    /// What was done without the renewer.
    completed: Option<Completed>,
    pub renewals: Renewals,
    /// The server has answered a request for a lock.
    pub answered: bool,
}

impl HeldLocks {
    /// Nothing is held yet.
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

    /// A lock is ours.
    pub fn add(&mut self, hold: HeldLock, lease: Lease) {
        self.renewals.add(hold.claim.lock().name().clone(), lease);
        self.all.push(hold);
    }

    /// The lease of all together: it ends when the first of them does.
    pub fn lease(&self) -> Option<Lease> {
        self.renewals.lease()
    }

    /// A lock is ours by a grant that is good for this long, and that the first renewal confirms.
    pub fn add_grant(&mut self, hold: HeldLock, lease: Lease, lasting: Duration, client: Client) {
        self.add(hold, lease);
        self.client = client;
        self.renewals.add_grant(lasting);
    }

    /// Returns the ids of these locks and guards, by which an environment shows that it is of their work. The work of an
    /// outer run has the ids of its locks, too.
    pub fn ids(&self) -> Vec<String> {
        let id = |hold: &HeldLock| match &hold.guard {
            Some(guard) => Some(guard.id.clone()),
            None => (!hold.reentrant).then(|| hold.claim.id()),
        };
        self.all.iter().filter_map(id).collect()
    }

    /// Returns the variables for a job of this client: of several locks lists, in the order of the `names`. `inherited`: the
    /// holds of the runs around this one. `slots`: the job learns its slots.
    pub fn environment(
        &self,
        names: &[Name],
        inherited: &[JobHold],
        who: &Who,
        slots: bool,
    ) -> Environment {
        let of_each = |value: &dyn Fn(&HeldLock) -> OsString| -> OsString {
            let in_order = names.iter().filter_map(|name| {
                let mut all = self.all.iter();
                all.find(|hold| hold.claim.lock().name() == name)
            });
            let values: Vec<OsString> = in_order.map(value).collect();
            values.join(OsStr::new(" "))
        };
        let token = |hold: &HeldLock| OsString::from_vec(hold.claim.token().as_bytes().to_vec());
        let own = || self.all.iter().filter(|hold| !hold.reentrant);
        // An earlier hold is over if its lock was acquired again.
        let is_over = |hold: &&JobHold| own().any(|new| new.claim.lock().name() == &hold.name);
        // A lock of a run of another process, and not of the process that the lock was acquired for now.
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

    /// How long all of them were waited for, in milliseconds; 0 only if all were free.
    pub fn waited_ms(&self) -> u128 {
        let waited: Duration = self.all.iter().map(|hold| hold.waited).sum();
        waited.as_millis().max(u128::from(!waited.is_zero()))
    }

    /// Has guards extend their holds from now on, even if the runs are over: the work hasn't ended when it was killed.
    pub fn insist(&mut self) {
        let mut is_new = false;
        for guard in self.all.iter_mut().filter_map(|hold| hold.guard.as_mut()) {
            is_new |= guard.insist();
        }
        if is_new {
            self.renewals.renew_now(now());
        }
    }

    /// Has the leases renewed, in the background.
    pub fn renew(&mut self) {
        self.start_task(Task::Renew);
    }

    /// Leaves all locks to other processes, until these release them or the leases end.
    pub fn leave(&mut self) {
        self.all.clear();
    }

    /// The renewer, as soon as one can be started.
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
            // At a limit of processes. Nothing is decided meanwhile, so that it may take no more than a part of a lease.
            let left = self
                .lease()
                .map_or(limit, |lease| lease.deadline().since(now()));
            task.client.limit_to(limit.min(left / WITHOUT_THREAD));
            self.completed = Some(task.carry_out());
        }
    }

    /// Has a watchdog kill this child where redlock can't. Where none can be started, it is tried again at the next renewal.
    pub fn start_watchdog(&mut self, child: &Child) {
        if !self.watchdog.as_mut().is_some_and(Watchdog::is_alive) {
            let renewer = self.renewer();
            let started = renewer.and_then(|renewer| Watchdog::start(child, renewer));
            self.watchdog = started.ok();
        }
    }

    /// Takes in results of renewals and checks, and what went wrong between them. A lock that is gone is forgotten.
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

    /// Takes in what the server pushes.
    fn take_pushes(&mut self) -> Result<(), Error> {
        while let Some(incoming) = self.client.receive()? {
            if let Incoming::Push(Push::KeyChanged) = incoming {
                self.renewals.on_key_changed(now());
            }
        }
        Ok(())
    }

    /// When a renewal or a check is due.
    pub fn due(&self) -> Option<Moment> {
        if self.completed.is_some() {
            return Some(now());
        }
        // The renewer has to be done first, and wakes us.
        self.renewals.due()
    }

    /// One of these becomes readable when there may be something to report.
    pub fn poll_fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        // The server pushes nothing before the first renewal.
        let listens = self.renewals.has_started();
        let client = self.client.fds().filter(move |_| listens);
        std::iter::once(self.renewer.as_ref().map(AsFd::as_fd)).chain(client.map(Some))
    }

    /// Takes the client back from the renewer, once a renewal that is under way has ended, or this time is over. Calls
    /// `is_slow` when that takes longer than a moment.
    pub fn reclaim_client(&mut self, within: Option<Duration>, is_slow: impl FnOnce()) {
        if let Some(renewer) = &mut self.renewer
            && let Some(completed) = renewer.finish(within, is_slow)
        {
            self.client = completed.client;
            self.renewals.end(Vec::new(), now());
        }
    }
}

/// Nothing forgets a lock: each way out of a run releases it or leaves it.
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
    use crate::supervise::environment::{Origin, origin_of, read_held};

    fn locks() -> Locks {
        let access = Access {
            url: "unix:///nobody",
            ..Access::default()
        };
        Locks::new(access, None, 0).unwrap()
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
        let held = read_held(value(HELD).unwrap().as_bytes());
        assert_eq!(held, [job_hold(&b, true), job_hold(&a, false)]);
        // A run within that one hands on what it doesn't use itself.
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
