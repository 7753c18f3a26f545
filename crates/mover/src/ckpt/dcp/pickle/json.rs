//! Plain values as JSON.

use serde_json::{Map, Number, Value as Json};

use super::{Id, Pickle, Value};

/// Deeper values are left alone.
const MAX_DEPTH: u32 = 32;
/// Larger values are left alone. Values may be referred to many times, so that a small pickle can
/// stand for a large document.
const MAX_NODES: u32 = 100_000;

impl Pickle {
    /// The result as JSON, where it is made of nothing but numbers, text, lists and dictionaries.
    pub fn to_json(&self) -> Option<Json> {
        let mut left = MAX_NODES;
        self.json(self.result(), MAX_DEPTH, &mut left)
    }

    fn json(&self, id: Id, depth: u32, left: &mut u32) -> Option<Json> {
        *left = left.checked_sub(1)?;
        let deeper = depth.checked_sub(1)?;
        match self.get(id) {
            Value::None => Some(Json::Null),
            Value::Bool(bool) => Some(Json::Bool(*bool)),
            Value::Int(number) => Some((*number).into()),
            Value::Float(number) => Number::from_f64(*number).map(Json::Number),
            Value::Text(text) => Some(Json::String(text.clone())),
            Value::Tuple(items) | Value::List(items) => items
                .iter()
                .map(|item| self.json(*item, deeper, left))
                .collect::<Option<Vec<Json>>>()
                .map(Json::Array),
            Value::Dict(pairs) => {
                let mut map = Map::new();
                for (key, value) in pairs {
                    let key = self.text(*key)?.to_owned();
                    map.insert(key, self.json(*value, deeper, left)?);
                }
                Some(Json::Object(map))
            }
            Value::Bytes(_) | Value::Global { .. } | Value::Made { .. } | Value::Outside(_) => None,
        }
    }
}
