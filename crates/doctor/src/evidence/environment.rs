//! Environment variables, from `env` or from a launch command.

mod reader;

use serde::Serialize;

pub(crate) use self::reader::EnvironmentReader;
use super::cite::Located;

/// The variables that bear on data paths, in the order written. Others may hold secrets, and are
/// counted only.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Environment {
    /// Each variable.
    pub variables: Vec<Located<Variable>>,
    /// Variables that do not bear on data paths, or came after the limit.
    pub others: u64,
}

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value; absent when a launch command only passes it on (`mpirun -x NAME`).
    pub value: Option<String>,
    /// How it was written.
    pub origin: VariableOrigin,
}

/// How a variable was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VariableOrigin {
    /// A line `NAME=value` of `env`.
    Dump,
    /// `export NAME=value`: this shell and what it starts, not other nodes by itself.
    Export,
    /// In front of a command: the process that it starts here.
    Command,
    /// `-x NAME=value` or the like of a launch command: every rank.
    Launch,
}

impl Environment {
    /// The last value of a variable.
    pub fn get(&self, name: &str) -> Option<&Located<Variable>> {
        self.variables.iter().rev().find(|v| v.value.name == name)
    }
}
