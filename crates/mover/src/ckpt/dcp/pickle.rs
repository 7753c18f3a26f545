//! A reader of pickles that executes nothing.
//!
//! A pickle is a program for a stack machine. This one runs the opcodes that PyTorch writes, but
//! where Python would call something, it only notes down what was to be called: classes and
//! functions are names, and every name has to be on the caller's list. Values refer to each other by
//! number, so that a short pickle cannot unfold into a large value.

use crate::checkpoint::Quoted;

mod json;
mod machine;

/// The most values that one pickle may make.
pub const MAX_VALUES: usize = 16_000_000;

/// The number of a value.
pub(crate) type Id = u32;

/// What a pickle made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function on the list.
    Global {
        module: String,
        name: String,
    },
    /// What calling something, or making an instance, would have made.
    Made {
        class: Id,
        arguments: Id,
        state: Option<Id>,
    },
    /// What the writer kept outside of the pickle, by its mark.
    Outside(Id),
}

/// The values that a pickle made, and which of them is its result.
#[derive(Debug)]
pub struct Pickle {
    values: Vec<Value>,
    result: Id,
}

/// Why a pickle is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PickleError {
    #[error("the pickle ends at {at}, in the middle")]
    Truncated { at: usize },
    #[error(
        "the pickle's opcode 0x{opcode:02x} at {at} is none that PyTorch writes into a checkpoint"
    )]
    Opcode { opcode: u8, at: usize },
    #[error("the pickle's opcode at {at} finds no value it could work on: {what}")]
    Stack { at: usize, what: &'static str },
    #[error("the pickle names {module}.{name}, which is none of what a checkpoint is made of")]
    Forbidden { module: Quoted, name: Quoted },
    #[error("the pickle makes more than {MAX_VALUES} values")]
    TooMany,
    #[error("the pickle holds a number at {at} that needs more than 64 bits")]
    Number { at: usize },
    #[error("the pickle holds text at {at} that is not UTF-8")]
    NotUtf8 { at: usize },
    #[error("{rest} bytes follow the end of the pickle")]
    Trailing { rest: usize },
}

impl PickleError {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } => "pickle-forbidden",
            Self::TooMany => "pickle-too-large",
            _ => "pickle-malformed",
        }
    }
}

/// A class or function that a pickle may name: its module, and its name or `*` for any.
pub type Allowed = (&'static str, &'static str);

impl Pickle {
    /// Reads a pickle, in which only these classes and functions may be named.
    ///
    /// # Errors
    /// See [`PickleError`]; the first fault ends the reading.
    pub fn parse(bytes: &[u8], allowed: &[Allowed]) -> Result<Self, PickleError> {
        machine::run(bytes, allowed)
    }

    pub(crate) const fn result(&self) -> Id {
        self.result
    }

    pub(crate) fn get(&self, id: Id) -> &Value {
        self.values.get(id as usize).unwrap_or(&Value::None)
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number that is not negative.
    pub(crate) fn count(&self, id: Id) -> Option<u64> {
        match self.get(id) {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(crate) fn pairs(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Value::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    pub(crate) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(items) | Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value under a key of a dictionary; the last one where a key comes twice, as in Python.
    pub(crate) fn field(&self, dict: Id, key: &str) -> Option<Id> {
        let pairs = self.pairs(dict)?;
        let mut found = pairs.iter().rev();
        found
            .find(|(name, _)| self.text(*name) == Some(key))
            .map(|(_, value)| *value)
    }

    /// The arguments and the state of an instance of a class, or of a call of a function.
    pub(crate) fn made(&self, id: Id, module: &str, name: &str) -> Option<(Id, Option<Id>)> {
        let Value::Made {
            class,
            arguments,
            state,
        } = self.get(id)
        else {
            return None;
        };
        match self.get(*class) {
            Value::Global { module: m, name: n } if m == module && n == name => {
                Some((*arguments, *state))
            }
            _ => None,
        }
    }

    /// The number behind each of some counts.
    pub(crate) fn counts(&self, id: Id) -> Option<Vec<u64>> {
        let items = self.items(id)?;
        items.iter().map(|item| self.count(*item)).collect()
    }
}
