//! The stack machine.

use super::{Allowed, Id, MAX_VALUES, Pickle, PickleError, Value};

/// Opcodes by their names in Python's `pickletools`.
mod op {
    pub const PROTO: u8 = 0x80;
    pub const FRAME: u8 = 0x95;
    pub const STOP: u8 = b'.';
    pub const MARK: u8 = b'(';
    pub const POP: u8 = b'0';
    pub const POP_MARK: u8 = b'1';
    pub const NONE: u8 = b'N';
    pub const NEWTRUE: u8 = 0x88;
    pub const NEWFALSE: u8 = 0x89;
    pub const BININT: u8 = b'J';
    pub const BININT1: u8 = b'K';
    pub const BININT2: u8 = b'M';
    pub const LONG1: u8 = 0x8a;
    pub const BINFLOAT: u8 = b'G';
    pub const BINUNICODE: u8 = b'X';
    pub const SHORT_BINUNICODE: u8 = 0x8c;
    pub const BINUNICODE8: u8 = 0x8d;
    pub const BINBYTES: u8 = b'B';
    pub const SHORT_BINBYTES: u8 = b'C';
    pub const BINBYTES8: u8 = 0x8e;
    pub const EMPTY_TUPLE: u8 = b')';
    pub const TUPLE: u8 = b't';
    pub const TUPLE1: u8 = 0x85;
    pub const TUPLE2: u8 = 0x86;
    pub const TUPLE3: u8 = 0x87;
    pub const EMPTY_LIST: u8 = b']';
    pub const APPEND: u8 = b'a';
    pub const APPENDS: u8 = b'e';
    pub const EMPTY_DICT: u8 = b'}';
    pub const SETITEM: u8 = b's';
    pub const SETITEMS: u8 = b'u';
    pub const GLOBAL: u8 = b'c';
    pub const STACK_GLOBAL: u8 = 0x93;
    pub const REDUCE: u8 = b'R';
    pub const NEWOBJ: u8 = 0x81;
    pub const BUILD: u8 = b'b';
    pub const BINPERSID: u8 = b'Q';
    pub const BINPUT: u8 = b'q';
    pub const LONG_BINPUT: u8 = b'r';
    pub const MEMOIZE: u8 = 0x94;
    pub const BINGET: u8 = b'h';
    pub const LONG_BINGET: u8 = b'j';
}

/// The newest protocol that is known.
const PROTOCOL: u8 = 5;

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    allowed: &'a [Allowed],
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: std::collections::HashMap<u64, Id>,
}

pub(super) fn run(bytes: &[u8], allowed: &[Allowed]) -> Result<Pickle, PickleError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        allowed,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: std::collections::HashMap::new(),
    };
    while !machine.step()? {}
    let result = machine.pop()?;
    let rest = bytes.len() - machine.at;
    if rest > 0 {
        return Err(PickleError::Trailing { rest });
    }
    Ok(Pickle {
        values: machine.values,
        result,
    })
}

impl Machine<'_> {
    fn take(&mut self, length: u64) -> Result<&[u8], PickleError> {
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| self.at.checked_add(length));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        match (taken, end) {
            (Some(taken), Some(end)) => {
                self.at = end;
                Ok(taken)
            }
            _ => Err(PickleError::Truncated { at: self.at }),
        }
    }

    /// A little-endian number of up to eight bytes.
    fn number(&mut self, bytes: u64) -> Result<u64, PickleError> {
        let taken = self.take(bytes)?;
        Ok(taken
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self, length: u64) -> Result<Value, PickleError> {
        let at = self.at;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(|text| Value::Text(text.to_owned()))
            .map_err(|_| PickleError::NotUtf8 { at })
    }

    /// Text up to the end of a line.
    fn line(&mut self) -> Result<String, PickleError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or(PickleError::Truncated { at: self.at })?;
        let at = self.at;
        let line = std::str::from_utf8(self.take(end as u64)?)
            .map(str::to_owned)
            .map_err(|_| PickleError::NotUtf8 { at })?;
        self.take(1)?;
        Ok(line)
    }

    fn fault(&self, what: &'static str) -> PickleError {
        PickleError::Stack {
            at: self.at.saturating_sub(1),
            what,
        }
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= MAX_VALUES {
            return Err(PickleError::TooMany);
        }
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.fault("the stack is empty"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.fault("the stack is empty"))
    }

    fn top(&self) -> Result<Id, PickleError> {
        self.stack
            .last()
            .copied()
            .ok_or_else(|| self.fault("the stack is empty"))
    }

    fn popped(&mut self, count: usize) -> Result<Vec<Id>, PickleError> {
        let mut ids = (0..count)
            .map(|_| self.pop())
            .collect::<Result<Vec<Id>, _>>()?;
        ids.reverse();
        Ok(ids)
    }

    /// Everything above the last mark, and the mark itself.
    fn marked(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop();
        match mark {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => Err(self.fault("there is no mark")),
        }
    }

    fn global(&mut self, module: String, name: String) -> Result<(), PickleError> {
        let listed = |(m, n): &Allowed| *m == module && (*n == "*" || *n == name);
        if !self.allowed.iter().any(listed) {
            return Err(PickleError::Forbidden {
                module: module.as_str().into(),
                name: name.as_str().into(),
            });
        }
        self.push(Value::Global { module, name })
    }

    fn text_of(&self, id: Id) -> Result<String, PickleError> {
        match self.values.get(id as usize) {
            Some(Value::Text(text)) => Ok(text.clone()),
            _ => Err(self.fault("a name is no text")),
        }
    }

    fn make(&mut self) -> Result<(), PickleError> {
        let ids = self.popped(2)?;
        let [class, arguments] = ids.as_slice() else {
            return Err(self.fault("nothing to call"));
        };
        self.push(Value::Made {
            class: *class,
            arguments: *arguments,
            state: None,
        })
    }

    fn append(&mut self, more: Vec<Id>) -> Result<(), PickleError> {
        let top = self.top()?;
        match self.values.get_mut(top as usize) {
            Some(Value::List(items)) => {
                items.extend(more);
                Ok(())
            }
            _ => Err(self.fault("no list to add to")),
        }
    }

    fn set(&mut self, more: &[Id]) -> Result<(), PickleError> {
        let (pairs, rest) = more.as_chunks::<2>();
        let pairs: Vec<(Id, Id)> = pairs.iter().map(|[key, value]| (*key, *value)).collect();
        let top = self.top()?;
        if !rest.is_empty() {
            return Err(self.fault("a key without a value"));
        }
        match self.values.get_mut(top as usize) {
            Some(Value::Dict(known)) => {
                known.extend(pairs);
                Ok(())
            }
            // An ordered dictionary is made by a call and filled afterwards; nobody asks for these.
            Some(Value::Made { .. }) => Ok(()),
            _ => Err(self.fault("no dictionary to add to")),
        }
    }

    fn build(&mut self) -> Result<(), PickleError> {
        let given = self.pop()?;
        let top = self.top()?;
        match self.values.get_mut(top as usize) {
            Some(Value::Made { state, .. }) => {
                *state = Some(given);
                Ok(())
            }
            _ => Err(self.fault("nothing to give a state to")),
        }
    }

    fn remember(&mut self, slot: u64) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn recall(&mut self, slot: u64) -> Result<(), PickleError> {
        let id = self.memo.get(&slot).copied();
        let id = id.ok_or_else(|| self.fault("nothing was memorised there"))?;
        self.stack.push(id);
        // References cost no value, but the stack they lie on must not grow without end either.
        if self.stack.len() > MAX_VALUES {
            return Err(PickleError::TooMany);
        }
        Ok(())
    }

    /// A whole number of up to 64 bits from its two's complement.
    fn long(&mut self) -> Result<Value, PickleError> {
        let at = self.at;
        let length = self.number(1)?;
        if length > 8 {
            return Err(PickleError::Number { at });
        }
        let number = self.number(length)?;
        let unused = 64 - 8 * length as u32;
        let signed = match unused {
            64 => 0,
            unused => ((number << unused) as i64) >> unused,
        };
        Ok(Value::Int(signed))
    }

    /// Runs one opcode; whether it was the last.
    fn step(&mut self) -> Result<bool, PickleError> {
        let at = self.at;
        let opcode = self.number(1)? as u8;
        match opcode {
            op::STOP => return Ok(true),
            op::PROTO => {
                let protocol = self.number(1)? as u8;
                if protocol > PROTOCOL {
                    return Err(PickleError::Opcode { opcode, at });
                }
            }
            op::FRAME => drop(self.number(8)?),
            op::MARK => self.marks.push(self.stack.len()),
            op::POP => drop(self.pop()?),
            op::POP_MARK => drop(self.marked()?),
            op::NONE => self.push(Value::None)?,
            op::NEWTRUE => self.push(Value::Bool(true))?,
            op::NEWFALSE => self.push(Value::Bool(false))?,
            op::BININT => {
                let number = self.number(4)? as u32 as i32;
                self.push(Value::Int(number.into()))?;
            }
            op::BININT1 => {
                let number = self.number(1)?;
                self.push(Value::Int(number as i64))?;
            }
            op::BININT2 => {
                let number = self.number(2)?;
                self.push(Value::Int(number as i64))?;
            }
            op::LONG1 => {
                let number = self.long()?;
                self.push(number)?;
            }
            op::BINFLOAT => {
                // The one number in a pickle that is big-endian.
                let number = f64::from_bits(self.number(8)?.swap_bytes());
                self.push(Value::Float(number))?;
            }
            op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => {
                let length = self.number(match opcode {
                    op::SHORT_BINUNICODE => 1,
                    op::BINUNICODE => 4,
                    _ => 8,
                })?;
                let text = self.text(length)?;
                self.push(text)?;
            }
            op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 => {
                let length = self.number(match opcode {
                    op::SHORT_BINBYTES => 1,
                    op::BINBYTES => 4,
                    _ => 8,
                })?;
                let bytes = self.take(length)?.to_vec();
                self.push(Value::Bytes(bytes))?;
            }
            op::EMPTY_TUPLE => self.push(Value::Tuple(Vec::new()))?,
            op::TUPLE => {
                let items = self.marked()?;
                self.push(Value::Tuple(items))?;
            }
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let items = self.popped(usize::from(opcode - op::TUPLE1) + 1)?;
                self.push(Value::Tuple(items))?;
            }
            op::EMPTY_LIST => self.push(Value::List(Vec::new()))?,
            op::APPEND => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            op::APPENDS => {
                let items = self.marked()?;
                self.append(items)?;
            }
            op::EMPTY_DICT => self.push(Value::Dict(Vec::new()))?,
            op::SETITEM => {
                let pair = self.popped(2)?;
                self.set(&pair)?;
            }
            op::SETITEMS => {
                let pairs = self.marked()?;
                self.set(&pairs)?;
            }
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            op::STACK_GLOBAL => {
                let ids = self.popped(2)?;
                let [module, name] = ids.as_slice() else {
                    return Err(self.fault("no name"));
                };
                let (module, name) = (self.text_of(*module)?, self.text_of(*name)?);
                self.global(module, name)?;
            }
            op::REDUCE | op::NEWOBJ => self.make()?,
            op::BUILD => self.build()?,
            op::BINPERSID => {
                let mark = self.pop()?;
                self.push(Value::Outside(mark))?;
            }
            op::MEMOIZE => self.remember(self.memo.len() as u64)?,
            op::BINPUT => {
                let slot = self.number(1)?;
                self.remember(slot)?;
            }
            op::LONG_BINPUT => {
                let slot = self.number(4)?;
                self.remember(slot)?;
            }
            op::BINGET => {
                let slot = self.number(1)?;
                self.recall(slot)?;
            }
            op::LONG_BINGET => {
                let slot = self.number(4)?;
                self.recall(slot)?;
            }
            opcode => return Err(PickleError::Opcode { opcode, at }),
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parsed(bytes: &[u8]) -> Result<serde_json::Value, PickleError> {
        run(bytes, &[]).map(|pickle| pickle.to_json().expect("plain values"))
    }

    #[test]
    fn plain_values_are_what_python_would_make_of_them() {
        // {'a': [1, -2, 300, None, True], 'b': (0.5, 'é')} by hand.
        let mut bytes =
            b"\x80\x04}(\x8c\x01a](K\x01J\xfe\xff\xff\xffM\x2c\x01N\x88e\x8c\x01bG".to_vec();
        bytes.extend_from_slice(&0.5f64.to_be_bytes());
        bytes.extend_from_slice(b"\x8c\x02\xc3\xa9\x86u.");
        let expected = json!({"a": [1, -2, 300, null, true], "b": [0.5, "é"]});
        assert_eq!(parsed(&bytes), Ok(expected));
        assert_eq!(parsed(b"\x80\x02\x8a\x02\x00\xff."), Ok(json!(-256)));
        assert_eq!(parsed(b"\x80\x02\x8a\x00."), Ok(json!(0)));
        assert_eq!(
            parsed(b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.").map_err(|e| e.code()),
            Err("pickle-malformed")
        );
    }

    #[test]
    fn a_call_of_anything_that_is_not_listed_is_refused_by_name() {
        let attacks: [&[u8]; 4] = [
            b"cos\nsystem\n(\x8c\x02idtR.",
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
            b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
            b"ctorch\nload\n.",
        ];
        for attack in attacks {
            let error = run(attack, &[("torch", "Size")]).expect_err("forbidden");
            assert_eq!(error.code(), "pickle-forbidden", "{error}");
        }
        let error = run(attacks[0], &[]).expect_err("forbidden");
        assert!(error.to_string().contains("\"os\".\"system\""), "{error}");
        assert!(run(b"ctorch\nSize\n.", &[("torch", "Size")]).is_ok());
    }

    #[test]
    fn opcodes_that_no_checkpoint_needs_are_refused() {
        // INST, OBJ, PERSID, NEWOBJ_EX, the extension registry, readable integers, next buffer.
        for opcode in [b'i', b'o', b'P', 0x92, 0x82, b'I', 0x97] {
            let error = run(&[0x80, 4, opcode, b'.'], &[]).expect_err("refused");
            assert_eq!(error, PickleError::Opcode { opcode, at: 2 });
        }
    }

    #[test]
    fn values_that_refer_to_themselves_or_to_many_others_cost_no_more_than_their_bytes() {
        // A list that holds itself.
        let pickle = run(b"]q\x00h\x00a.", &[]).expect("a list");
        assert_eq!(pickle.to_json(), None);
        // Forty levels, each holding the one before it twice.
        let mut bytes = b"]\x94".to_vec();
        for level in 0..40u8 {
            bytes.extend_from_slice(&[b'h', level, b'h', level, 0x86, 0x94]);
        }
        bytes.push(b'.');
        let pickle = run(&bytes, &[]).expect("tuples");
        assert_eq!(pickle.to_json(), None);
    }

    #[test]
    fn a_mark_guards_what_lies_below_it() {
        let error = run(b"N(0.", &[]).expect_err("nothing above the mark");
        assert_eq!(error.code(), "pickle-malformed");
        assert!(run(b"", &[]).is_err());
        assert!(run(b".", &[]).is_err());
        assert_eq!(run(b"NN.", &[]).map(|p| p.result()), Ok(1));
        assert_eq!(
            run(b"N.N", &[]).map(|p| p.result()),
            Err(PickleError::Trailing { rest: 1 })
        );
    }

    impl PartialEq for Pickle {
        fn eq(&self, other: &Self) -> bool {
            self.values == other.values && self.result == other.result
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(pickle) = run(&bytes, &[("torch", "*")]) {
                let _ = pickle.to_json();
            }
        }

        #[test]
        fn any_opcodes_that_exist_end_in_a_value_or_an_error(
            ops in proptest::collection::vec(
                proptest::sample::select(b"\x80\x95.(01N\x88\x89JKM\x8aGX\x8cBC)t\x85\x86\x87]ae}sucR\x93\x81bQqr\x94hj\n\x00\x01".to_vec()),
                0..200,
            )
        ) {
            if let Ok(pickle) = run(&ops, &[("torch", "*")]) {
                let _ = pickle.to_json();
            }
        }
    }
}
