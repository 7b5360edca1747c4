//! The messages under way between the clients and the servers. A connection keeps their order; nothing else does.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::digest::{Cached, digest_of, digest_of_debug};
use crate::server::call::{Call, Script};

/// A call of a script.
pub struct Asked {
    pub call: Call,
    /// Whole script to call if a short script answers 0.
    pub whole: Option<&'static Script>,
    digest: Cached,
}

impl Asked {
    pub fn new(call: Call) -> Rc<Self> {
        Self::shortly(call, None)
    }

    /// Like [`Self::new`], with the short script if there is one.
    pub fn shortly(call: Call, short: Option<&'static Script>) -> Rc<Self> {
        let whole = short.map(|_| call.script);
        let script = short.unwrap_or(call.script);
        let call = Call { script, ..call };
        Rc::new(Self {
            call,
            whole,
            digest: Cached::default(),
        })
    }

    pub fn digest(&self) -> u128 {
        let Call { script, keys, args } = &self.call;
        self.digest.get_or(|| digest_of(&(script.hash, keys, args)))
    }

    /// Converts an answer on its arrival: if a short script has done nothing, the whole one must be called.
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
        write!(f, "{:x}", self.digest())
    }
}

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Request {
    pub asked: Rc<Asked>,
    /// True if the client subscribes to its channel first.
    pub subscribes: bool,
    /// True if the server must notify the client of changes of the lock's key.
    pub tracks: bool,
}

/// A message to a client.
#[derive(Clone, Debug)]
pub enum Incoming {
    Answer(Value),
    /// A short script has done nothing, and this call must follow.
    Again(Rc<Asked>),
    /// The call was executed, but too few replicas have confirmed it.
    NotReplicated,
    Message(Vec<u8>),
    KeyChanged,
    Closed,
}

/// A message under way to a client.
#[derive(Clone, Debug)]
pub struct Arriving {
    pub what: Incoming,
    /// Time of its arrival; `None` for at once.
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
    /// True if its client's host has vanished silently, which the server doesn't know.
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

    /// Returns true if it ends after the messages under way to the client.
    pub fn is_closing(&self) -> bool {
        self.incoming
            .iter()
            .any(|incoming| matches!(incoming.what, Incoming::Closed))
    }
}

/// A request over a connection that its client has given up: it may arrive, but gets no answer.
#[derive(Clone)]
pub struct Stray {
    pub node: usize,
    pub asked: Rc<Asked>,
}

/// Messages that are delayed between a client and the servers, over any connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delay {
    None,
    /// Messages from the servers.
    Answers,
    /// Messages in both directions.
    All,
}

/// At most one connection of each client, and the requests that others have left under way.
#[derive(Clone)]
pub struct Network {
    /// Node that new connections go to.
    pub primary: usize,
    /// Node that is cut off together with the first client, if there is one.
    pub cut_off: Option<usize>,
    pub links: Vec<Option<Rc<Link>>>,
    pub strays: Vec<Stray>,
    pub delays: Vec<Delay>,
    /// True if requests over a given-up connection may arrive later.
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

    /// Returns the connection of a client, for a change.
    pub fn link(&mut self, client: usize) -> Option<&mut Link> {
        let link = Rc::make_mut(self.links[client].as_mut()?);
        link.digest.forget();
        Some(link)
    }

    pub fn is_open(&self, client: usize) -> bool {
        self.links[client].is_some()
    }

    /// Sends a request, over a new connection if there is none.
    pub fn send(&mut self, client: usize, request: Request) {
        let own = self.cut_off.filter(|_| client == 0);
        let primary = own.unwrap_or(self.primary);
        self.links[client].get_or_insert_with(|| Rc::new(Link::to(primary)));
        let link = self.link(client).expect("there is one");
        // Requests over a connection that the other side has closed are lost.
        if !link.is_closing() {
            link.requests.push_back(request);
        }
    }

    /// Gives up the client's connection.
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

    /// Breaks the connection: everything under way is lost, in both directions.
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

    /// Breaks all connections to a node.
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

    /// Returns true if a message under way to or from a client could arrive now.
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
