//! What is under way between the clients and the servers. A connection keeps the order of what goes over
//! it; nothing else does.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::digest::{Cached, digest_of, digest_of_debug};
use crate::redis::call::{Call, Script};

/// A call of a script.
pub struct Asked {
    pub call: Call,
    /// Script to call if the call, of a short script, answers 0.
    pub whole: Option<&'static Script>,
    pub digest: u128,
}

impl Asked {
    pub fn new(call: Call) -> Rc<Self> {
        Self::shortly(call, None)
    }

    /// Like [`Self::new`], by a short script, if it may do.
    pub fn shortly(call: Call, short: Option<&'static Script>) -> Rc<Self> {
        let whole = short.map(|_| call.script);
        let script = short.unwrap_or(call.script);
        let digest = digest_of(&(script.hash, &call.keys, &call.args));
        let call = Call { script, ..call };
        Rc::new(Self {
            call,
            whole,
            digest,
        })
    }

    /// This answer as it comes in: a short script that has done nothing has the whole one asked.
    pub fn incoming(&self, answer: Value) -> Incoming {
        match self.whole {
            Some(script) if answer == Value::Int(0) => {
                Incoming::Again(Self::new(self.call.of(script)))
            }
            _ => Incoming::Answer(answer),
        }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.digest)
    }
}

/// What a client sends.
#[derive(Clone, Debug)]
pub struct Request {
    pub asked: Rc<Asked>,
    /// The client subscribes to its channel first.
    pub subscribes: bool,
    /// The server is to push when the lock's key changes.
    pub tracks: bool,
}

/// What comes back.
#[derive(Clone, Debug)]
pub enum Incoming {
    Answer(Value),
    /// A short script has done nothing, and this is to be asked.
    Again(Rc<Asked>),
    /// It was done, and too few replicas have confirmed it.
    NotReplicated,
    Message(Vec<u8>),
    KeyChanged,
    Closed,
}

/// The same, on its way.
#[derive(Clone, Debug)]
pub struct Arriving {
    pub what: Incoming,
    /// When it is there; none: at once.
    pub at: Option<Duration>,
}

impl Arriving {
    pub fn is_there(&self, now: Duration) -> bool {
        self.at.is_none_or(|at| now >= at)
    }
}

/// A connection to one node.
#[derive(Clone, Debug)]
pub struct Link {
    pub node: usize,
    pub requests: VecDeque<Request>,
    pub incoming: VecDeque<Arriving>,
    pub listens: bool,
    pub tracks: bool,
    /// Its client's host is gone without a word: the server doesn't know.
    pub is_abandoned: bool,
    digest: Cached,
}

impl Link {
    fn to(node: usize) -> Self {
        Self {
            node,
            requests: VecDeque::new(),
            incoming: VecDeque::new(),
            listens: false,
            tracks: false,
            is_abandoned: false,
            digest: Cached::default(),
        }
    }

    pub fn digest(&self) -> u128 {
        self.digest.get_or(|| digest_of_debug(self))
    }

    /// Whether it ends for the client with what is under way to it.
    pub fn is_closing(&self) -> bool {
        self.incoming
            .iter()
            .any(|incoming| matches!(incoming.what, Incoming::Closed))
    }
}

/// A request over a connection that its client has given up: it may arrive, but isn't answered.
#[derive(Clone)]
pub struct Stray {
    pub node: usize,
    pub asked: Rc<Asked>,
}

/// What is held up between a client and the servers, whatever connection it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delay {
    None,
    /// What comes back.
    Answers,
    /// What is sent, and what comes back.
    All,
}

/// One connection each client at most, and what others have left under way.
#[derive(Clone)]
pub struct Network {
    /// The node that new connections go to.
    pub primary: usize,
    /// The node that the first client is cut off with, where it is.
    pub cut_off: Option<usize>,
    pub links: Vec<Option<Rc<Link>>>,
    pub strays: Vec<Stray>,
    pub delays: Vec<Delay>,
    /// Whether what was sent over a connection that is given up may arrive later on.
    pub keeps_strays: bool,
}

impl Network {
    pub fn new(clients: usize, keeps_strays: bool) -> Self {
        Self {
            primary: 0,
            cut_off: None,
            links: vec![None; clients],
            strays: Vec::new(),
            delays: vec![Delay::None; clients],
            keeps_strays,
        }
    }

    /// The connection of a client, to be changed.
    pub fn link(&mut self, client: usize) -> Option<&mut Link> {
        let link = Rc::make_mut(self.links[client].as_mut()?);
        link.digest.forget();
        Some(link)
    }

    pub fn is_open(&self, client: usize) -> bool {
        self.links[client].is_some()
    }

    /// Sends a request, over a fresh connection where there is none.
    pub fn send(&mut self, client: usize, request: Request) {
        let own = self.cut_off.filter(|_| client == 0);
        let primary = own.unwrap_or(self.primary);
        self.links[client].get_or_insert_with(|| Rc::new(Link::to(primary)));
        let link = self.link(client).expect("there is one");
        // What is sent over a connection that the other side has closed is lost.
        if !link.is_closing() {
            link.requests.push_back(request);
        }
    }

    /// The client gives its connection up.
    pub fn close(&mut self, client: usize) {
        if let Some(link) = self.links[client].take()
            && self.keeps_strays
        {
            let node = link.node;
            let calls = link
                .requests
                .iter()
                .map(|request| Rc::clone(&request.asked));
            self.strays.extend(calls.map(|asked| Stray { node, asked }));
        }
    }

    /// The connection breaks: what is under way is lost, in both directions.
    pub fn cut(&mut self, client: usize) {
        if let Some(link) = self.link(client) {
            link.requests.clear();
            link.incoming.clear();
            link.incoming.push_back(Arriving {
                what: Incoming::Closed,
                at: None,
            });
            link.listens = false;
            link.tracks = false;
        }
    }

    /// All connections to a node break.
    pub fn cut_all(&mut self, node: usize) {
        for client in 0..self.links.len() {
            if self.links[client]
                .as_ref()
                .is_some_and(|link| link.node == node)
            {
                self.cut(client);
            }
        }
        self.strays.retain(|stray| stray.node != node);
    }

    /// Whether something is under way to or from a client that could take it now.
    pub fn is_busy(&self, now: Duration, can_receive: impl Fn(usize) -> bool) -> bool {
        self.links.iter().enumerate().any(|(client, link)| {
            link.as_ref().is_some_and(|link| {
                let delay = self.delays[client];
                let is_there = link.incoming.front().is_some_and(|next| next.is_there(now));
                (!link.requests.is_empty() && delay != Delay::All)
                    || (is_there && delay == Delay::None && can_receive(client))
            })
        })
    }
}
