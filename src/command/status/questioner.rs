//! A thread that asks Redis for locks, so that its user waits for signals, keys and the clock meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::find;
use crate::command::asked::Asked;
use crate::protocol::{Client, Error, Inspected, Locks};
use crate::sys;

/// The thread asks, reads and hands over.
const STACK: usize = 512 * 1024;

/// The locks, or why they aren't known.
pub type Answer = Result<Vec<Inspected>, Error>;

/// The thread that asks Redis.
pub struct Questioner(Sender<()>);

impl Questioner {
    /// Starts it. `hand_over` gets each answer; false when no more are wanted. `persistent`: what worked
    /// before is tried once more before it counts as failed.
    pub fn start(
        mut client: Client,
        asked: Arc<Asked>,
        locks: Locks,
        persistent: bool,
        mut hand_over: impl FnMut(Answer) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, questioned) = channel();
        sys::start_thread("status", STACK, move || {
            let mut has_worked = false;
            while let Ok(()) = questioned.recv() {
                let mut found = find(&asked, &mut client, &locks);
                if found.is_err() && persistent && has_worked {
                    // Over a fresh connection.
                    found = find(&asked, &mut client, &locks);
                }
                has_worked |= found.is_ok();
                if !hand_over(found) {
                    return;
                }
            }
        })?;
        Ok(Self(questions))
    }

    /// Asks once more. Without the thread no answer comes.
    pub fn ask(&self) {
        let _ = self.0.send(());
    }
}
