//! Runs Lua scripts like Redis: version 5.1 of the language, the same functions, and the same conversions between its values
//! and those of the protocol.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, VmState};
use redis::Value;

use super::commands::{Run, error};
use super::data::{Bytes, Data};
use super::{Evaluated, Moment};

/// Number of instructions between two checks whether a script may go on.
const PACE: u32 = 1_000_000;
/// Number of such checks before an endless script is ended.
const PATIENCE: u32 = 20;

/// Lua code that makes undefined names errors, as in Redis.
const STRICT: &str = "
setmetatable(_G, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. name, 2) end,
  __newindex = function(_, name) error('Attempt to modify a readonly table ' .. name, 2) end,
})";

/// A Lua interpreter that keeps the scripts that it has run, ready to run again.
pub struct Interpreter {
    lua: Lua,
    /// Scripts by the address and length of their sources, which are never freed.
    scripts: RefCell<HashMap<(usize, usize), Function>>,
    current: Rc<RefCell<Current>>,
}

/// The script that runs, if any.
struct Current {
    run: Run,
    paces: u32,
}

/// The error of a command, which ends the script.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Default for Interpreter {
    fn default() -> Self {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new()).unwrap();
        let run = Run::new(Data::default(), Moment::default());
        let current = Rc::new(RefCell::new(Current { run, paces: 0 }));
        let redis = functions(&lua, &current).unwrap();
        let globals = lua.globals();
        globals.set("redis", redis).unwrap();
        globals.set("KEYS", lua.create_table().unwrap()).unwrap();
        globals.set("ARGV", lua.create_table().unwrap()).unwrap();
        lua.load(STRICT).exec().unwrap();
        limit(&lua, &current);
        Self {
            lua,
            scripts: RefCell::default(),
            current,
        }
    }
}

impl Interpreter {
    /// Runs a script. Returns its answer, and its effects besides changing the data.
    pub fn eval(
        &self,
        data: &mut Data,
        moment: &Moment,
        source: &'static str,
        keys: &[Bytes],
        args: &[Bytes],
    ) -> Evaluated {
        self.current.replace(Current {
            run: Run::new(std::mem::take(data), moment.clone()),
            paces: 0,
        });
        let answer = self.run(source, keys, args);
        let run = &mut self.current.borrow_mut().run;
        *data = std::mem::take(&mut run.data);
        Evaluated {
            answer: answer.unwrap_or_else(|text| error(&text)),
            published: std::mem::take(&mut run.published),
            heard: std::mem::take(&mut run.heard),
            writes: run.writes,
        }
    }

    fn run(&self, source: &'static str, keys: &[Bytes], args: &[Bytes]) -> Result<Value, String> {
        let script = self.script(source).map_err(|error| told(&error))?;
        self.set("KEYS", keys);
        self.set("ARGV", args);
        let answer: mlua::Value = script.call(()).map_err(|error| told(&error))?;
        Ok(to_reply(&answer))
    }

    fn script(&self, source: &'static str) -> mlua::Result<Function> {
        let place = (source.as_ptr() as usize, source.len());
        if let Some(loaded) = self.scripts.borrow().get(&place) {
            return Ok(loaded.clone());
        }
        let script = self.lua.load(source).set_name("@user_script");
        let script = script.into_function()?;
        self.scripts.borrow_mut().insert(place, script.clone());
        Ok(script)
    }

    fn set(&self, name: &str, words: &[Bytes]) {
        let words = words
            .iter()
            .map(|word| self.lua.create_string(word).unwrap());
        let table = self.lua.create_sequence_from(words).unwrap();
        self.lua.globals().raw_set(name, table).unwrap();
    }
}

/// Creates the table `redis`.
fn functions(lua: &Lua, current: &Rc<RefCell<Current>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let current = Rc::clone(current);
        let call = move |lua: &Lua, args: MultiValue| {
            let answer = match words(&args) {
                Ok(words) => current.borrow_mut().run.call(&words),
                Err(text) => error(text),
            };
            match answer {
                Value::ServerError(refusal) if raises => {
                    Err(mlua::Error::external(Refused(text_of(&refusal))))
                }
                answer => to_lua(lua, answer),
            }
        };
        table.set(name, lua.create_function(call)?)?;
    }
    table.set(
        "sha1hex",
        lua.create_function(|lua, text: mlua::Value| {
            // A value without a text is treated as an empty text.
            let text = lua.coerce_string(text)?;
            let bytes = text.map(|text| text.as_bytes().to_vec());
            let digest = sha1_smol::Sha1::from(bytes.unwrap_or_default()).digest();
            Ok(digest.to_string())
        })?,
    )?;
    Ok(table)
}

/// Ends endless scripts.
fn limit(lua: &Lua, current: &Rc<RefCell<Current>>) {
    let current = Rc::clone(current);
    let triggers = HookTriggers::new().every_nth_instruction(PACE);
    lua.set_hook(triggers, move |_, _| {
        let Ok(mut current) = current.try_borrow_mut() else {
            return Ok(VmState::Continue);
        };
        current.paces += 1;
        if current.paces > PATIENCE {
            return Err(mlua::Error::external(Refused(
                "BUSY the script doesn't end".into(),
            )));
        }
        Ok(VmState::Continue)
    })
    .unwrap();
}

/// Returns the words of a command from the arguments of a call, or an error.
fn words(args: &MultiValue) -> Result<Vec<Bytes>, &'static str> {
    let word = |value: &mlua::Value| match value {
        mlua::Value::String(text) => Ok(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Ok(number.to_string().into_bytes()),
        mlua::Value::Number(number) => Ok(number.to_string().into_bytes()),
        _ => Err("ERR Lua redis lib command arguments must be strings or integers"),
    };
    if args.is_empty() {
        return Err("ERR Please specify at least one argument for this redis lib call");
    }
    args.iter().map(word).collect()
}

/// Converts an answer of a command for a script.
fn to_lua(lua: &Lua, answer: Value) -> mlua::Result<mlua::Value> {
    let single = |field: &str, text: &str| -> mlua::Result<mlua::Value> {
        lua.create_table_from([(field, text)])
            .map(mlua::Value::Table)
    };
    #[allow(clippy::cast_precision_loss)] // As in Redis.
    Ok(match answer {
        Value::Nil => mlua::Value::Boolean(false),
        Value::Int(number) => mlua::Value::Number(number as f64),
        Value::BulkString(bytes) => mlua::Value::String(lua.create_string(bytes)?),
        Value::Array(fields) => {
            let table = lua.create_table_with_capacity(fields.len(), 0)?;
            for field in fields {
                table.raw_push(to_lua(lua, field)?)?;
            }
            mlua::Value::Table(table)
        }
        Value::Okay => single("ok", "OK")?,
        Value::SimpleString(text) => single("ok", &text)?,
        Value::ServerError(refusal) => single("err", &text_of(&refusal))?,
        other => panic!("no command answers {other:?}"),
    })
}

fn text_of(refusal: &redis::ServerError) -> String {
    let parts = [Some(refusal.code()), refusal.details()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Converts the result of a script for a client.
fn to_reply(value: &mlua::Value) -> Value {
    match value {
        mlua::Value::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Value::Int(*number),
        #[allow(clippy::cast_possible_truncation)] // As in Redis.
        mlua::Value::Number(number) => Value::Int(*number as i64),
        mlua::Value::Boolean(true) => Value::Int(1),
        mlua::Value::Table(table) => from_table(table),
        _ => Value::Nil,
    }
}

fn from_table(table: &Table) -> Value {
    let field = |name| match table.raw_get(name) {
        Ok(mlua::Value::String(text)) => Some(text.to_string_lossy()),
        _ => None,
    };
    if let Some(text) = field("err") {
        return error(&text);
    }
    if let Some(text) = field("ok") {
        return if text == "OK" {
            Value::Okay
        } else {
            Value::SimpleString(text)
        };
    }
    let fields = (1..).map(|n| table.raw_get::<mlua::Value>(n).unwrap_or(mlua::Value::Nil));
    let fields = fields.take_while(|field| !field.is_nil());
    Value::Array(fields.map(|field| to_reply(&field)).collect())
}

/// Converts the error that ended a script for a client.
fn told(error: &mlua::Error) -> String {
    if let Some(Refused(text)) = error.downcast_ref() {
        return text.clone();
    }
    let text = error.to_string();
    format!("ERR {}", text.lines().next().unwrap_or_default())
}
