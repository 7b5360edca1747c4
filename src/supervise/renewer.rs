//! The background thread that keeps leases alive.
//!
//! It carries out one task after the other, with the client that comes with the task, and sends back
//! the results and the client, which is open if its connection is still good. When a task is due,
//! and what follows from it, is decided by `decide/renewals.rs`. So a connection that hangs delays this thread alone,
//! never the main thread, which watches the deadline. Between two tasks the main thread has the client, so
//! that it gets what the server pushes, and can release the lock without waking another thread. The
//! thread starts with the first task: a short run never has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{Moment, now};
use crate::decide::renewals::{Answer, Task};
use crate::protocol::{Claim, Client, Error, Guard, LeaseState};
use crate::sys;

/// A task with all that it needs.
pub struct RenewalTask {
    pub task: Task,
    pub client: Client,
    /// All holds that are renewed: this run's, and those of runs around it.
    pub claims: Vec<Claim>,
    /// Holds of runs elsewhere, which renew them. If there are any, they alone are extended.
    pub guards: Vec<Guard>,
    /// The length of each lease by a renewal.
    pub ttl: Duration,
    pub on_renewal: Option<OnRenewal>,
}

/// Work for the renewer's thread; a task returns its result.
pub type Call = Box<dyn FnOnce() -> Option<Completed> + Send>;

/// What is called, in the renewer's thread, once a renewal of all claims has succeeded, with the moment at which it was sent.
pub type OnRenewal = Box<dyn Fn(Moment) + Send>;

/// A task that was carried out.
pub struct Completed {
    /// Open, if its connection is still good.
    pub client: Client,
    /// Answers, and the error that ended the task, if one did.
    pub answers: Vec<Result<Answer, Error>>,
}

/// The pause before another try to wake the thread that decides.
const WAKE_AGAIN: Duration = Duration::from_millis(1);

/// An end, or an answer, that takes longer than this is slow.
const SLOW_ANSWER: Duration = Duration::from_millis(500);

/// A running renewer.
pub struct Renewer {
    /// `None` only when the thread is to end.
    orders: Option<Sender<Call>>,
    completed: Receiver<Completed>,
    wake: Arc<EventFd>,
    /// How long the job may take that is being done; `None`: none is.
    busy: Option<Duration>,
    /// `None` once it has hung for longer than that.
    thread: Option<JoinHandle<()>>,
}

impl Renewer {
    /// Starts the thread. It lives for as long as the process, or until this is dropped.
    pub fn start() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let (orders, ordered) = channel::<Call>();
        // The thread alone reports, so that nobody waits for a thread that is gone.
        let (report, completed) = channel();
        let waker = Arc::clone(&wake);
        let thread = sys::start_thread("renewer", sys::USUAL_STACK, move || {
            for completed in ordered.into_iter().filter_map(|call| call()) {
                let is_heard = report.send(completed).is_ok();
                // An answer that the other thread doesn't hear of would count for nothing.
                while is_heard && waker.write(1).is_err() {
                    std::thread::sleep(WAKE_AGAIN);
                }
            }
        })?;
        Ok(Self {
            orders: Some(orders),
            completed,
            wake,
            busy: None,
            thread: Some(thread),
        })
    }

    /// Has a task carried out, each step within the limit of its client.
    pub fn start_task(&mut self, task: RenewalTask) {
        // For connecting, for the renewal, and for the look after it. Somewhat more, so that the
        // thread that waits for a task doesn't give up just before it is done.
        let patience = task.client.longest(3) + Duration::from_millis(200);
        // A thread that is gone does nothing; the deadline takes care of that.
        let is_sent = self.call(Box::new(move || Some(task.carry_out())));
        self.busy = is_sent.then_some(patience);
    }

    /// Has something done by the thread, before the next task. Returns false if the thread is gone.
    pub fn call(&self, call: Call) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(call).is_ok())
    }

    /// What was done, if it is.
    pub fn completed(&mut self) -> Option<Completed> {
        let _ = self.wake.read();
        let completed = self.completed.try_recv().ok()?;
        self.busy = None;
        Some(completed)
    }

    /// Waits for a task that is being carried out: at most the limit of its client for connecting, and as
    /// much for each of two answers, whatever the thread hangs in, and no longer than `within`. Calls `is_slow` when
    /// that takes longer than a moment.
    pub fn finish(
        &mut self,
        within: Option<Duration>,
        is_slow: impl FnOnce(),
    ) -> Option<Completed> {
        let patience = self.busy.take()?;
        let patience = within.map_or(patience, |within| patience.min(within));
        let completed = self.completed.recv_timeout(SLOW_ANSWER.min(patience));
        let completed = completed.ok().or_else(|| {
            is_slow();
            let rest = patience.saturating_sub(SLOW_ANSWER);
            self.completed.recv_timeout(rest).ok()
        });
        if completed.is_none() {
            self.thread = None;
        }
        completed
    }
}

/// A thread that has nothing to do ends first: else it, and not the process, might be the last to go, and
/// would clear up on the processor where the next holder's command is being started.
impl Drop for Renewer {
    fn drop(&mut self) {
        self.orders = None;
        if self.busy.is_none()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl AsFd for Renewer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl RenewalTask {
    /// After a failure the answer may still come, so that connection was given up and the next try
    /// makes a fresh one; what was learned before it counts.
    pub fn carry_out(mut self) -> Completed {
        let mut answers = Vec::new();
        let mut done = self.ask(&mut answers);
        // A fresh connection goes to another node of the cluster.
        if done.as_ref().is_err_and(Error::goes_elsewhere) {
            done = self.ask(&mut answers);
        }
        answers.extend(done.err().map(Err));
        let mut client = self.client;
        client.lift_limit();
        Completed { client, answers }
    }

    fn ask(&mut self, answers: &mut Vec<Result<Answer, Error>>) -> Result<(), Error> {
        let client = &mut self.client;
        client.follow_locks();
        let sent = now();
        client.open()?;
        if !self.guards.is_empty() {
            let states = Guard::extend_all(&self.guards, client)?;
            let claims = self.guards.iter().map(Guard::claim);
            answers.push(Ok(answer(Task::Follow, sent, claims, states)));
            return Ok(());
        }
        let ttl = self.ttl;
        if self.task == Task::Renew {
            let (states, tracked) = Claim::renew_all(&self.claims, client, ttl)?;
            let renewed = answer(Task::Renew, sent, self.claims.iter(), states);
            let left = renewed.shortest();
            let is_over = left.is_none() || renewed.has_lost();
            if let Some(on_renewal) = self.on_renewal.as_ref().filter(|_| !is_over) {
                on_renewal(sent);
            }
            answers.push(Ok(renewed));
            if is_over || (tracked && left.is_some_and(|left| left <= ttl)) {
                return Ok(());
            }
        }
        // A renewal, too, changes the key, after which tracking has to be requested again; and
        // changes from before that request are not reported.
        let sent = now();
        let states = Claim::check_all(&self.claims, client, ttl)?;
        let checked = answer(Task::Check, sent, self.claims.iter(), states);
        if client.deployment.replication().is_some()
            && checked.shortest().is_some_and(|left| left > ttl)
        {
            // What the work has extended is replicated when a later renewal is.
            Claim::renew_all(&self.claims, client, ttl)?;
        }
        answers.push(Ok(checked));
        Ok(())
    }
}

fn answer<'a>(
    task: Task,
    sent: Moment,
    claims: impl Iterator<Item = &'a Claim>,
    states: Vec<LeaseState>,
) -> Answer {
    let names = claims.map(|claim| claim.lock().name().clone());
    Answer {
        task,
        sent,
        states: names.zip(states).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Access, Locks};

    #[test]
    fn the_limit_of_a_task_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access {
            url: &format!("unix://{}", dir.path().join("nobody").display()),
            timeout: Duration::from_secs(20),
            ..Access::default()
        };
        let locks = Locks::new(access, None, 0).unwrap();
        let mut client = locks.client();
        client.limit_to(Duration::from_millis(200));
        let task = RenewalTask {
            task: Task::Renew,
            client,
            claims: Vec::new(),
            guards: Vec::new(),
            ttl: Duration::from_secs(1),
            on_renewal: None,
        };
        let done = task.carry_out();
        assert!(matches!(done.answers[..], [Err(_)]));
        assert_eq!(done.client.longest(1), Duration::from_secs(20));
    }
}
