//! The unwind rule of an address: where the caller's registers are.

/// The longest expression that is kept, in bytes. The longest ones that linkers write have 11 bytes.
pub(super) const MAX_EXPRESSION: usize = 256;

/// The caller's value of one register. Offsets are in bytes from the canonical frame address (CFA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Saved<'a> {
    /// The callee has not changed the register.
    #[default]
    Same,
    /// The value is lost.
    Undefined,
    /// The value is in memory at CFA + offset.
    At(i32),
    /// The value is CFA + offset.
    Is(i32),
    /// The value is in another register.
    In(u8),
    /// The value is in memory at the result of an expression.
    AtExpression(&'a [u8]),
    /// The value is the result of an expression.
    IsExpression(&'a [u8]),
}

/// The way to the canonical frame address (CFA), which is the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cfa<'a> {
    Register(u8, i32),
    Expression(&'a [u8]),
}

/// The unwind rule of an address. Most rules are shared by many addresses, so rules can be compared and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::stacks) struct Rule {
    cfa: Packed,
    cfa_register: u8,
    return_register: u8,
    is_signal: bool,
    columns: Box<[Column]>,
    /// All expressions of the rule in one allocation. Most rules have none.
    expressions: Box<[u8]>,
}

/// The packed form of a register's rule; a register that is the same has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Column {
    register: u8,
    packed: Packed,
}

/// A [`Saved`] or a [`Cfa`] in eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Packed {
    Undefined,
    At(i32),
    Is(i32),
    In(u8),
    AtExpression(Span),
    IsExpression(Span),
}

/// The start and the length of an expression.
type Span = (u16, u16);

impl Rule {
    /// Packs a rule; returns `None` if an expression is too long.
    pub(super) fn new(cfa: Cfa<'_>, return_register: u8, saved: &[Saved<'_>]) -> Option<Self> {
        let mut expressions = Vec::new();
        let (cfa_register, cfa) = match cfa {
            Cfa::Register(register, offset) => (register, Packed::Is(offset)),
            Cfa::Expression(bytes) => (0, Packed::IsExpression(add(&mut expressions, bytes)?)),
        };
        let mut columns = Vec::with_capacity(saved.iter().filter(|saved| **saved != Saved::Same).count());
        for (register, saved) in (0..).zip(saved) {
            let packed = match *saved {
                Saved::Same => continue,
                Saved::Undefined => Packed::Undefined,
                Saved::At(offset) => Packed::At(offset),
                Saved::Is(offset) => Packed::Is(offset),
                Saved::In(register) => Packed::In(register),
                Saved::AtExpression(bytes) => Packed::AtExpression(add(&mut expressions, bytes)?),
                Saved::IsExpression(bytes) => Packed::IsExpression(add(&mut expressions, bytes)?),
            };
            columns.push(Column { register, packed });
        }
        let (columns, expressions) = (columns.into(), expressions.into());
        Some(Self { cfa, cfa_register, return_register, is_signal: false, columns, expressions })
    }

    /// Marks the frame of a signal handler's caller, which the signal interrupted at any instruction.
    pub(super) fn with_signal(mut self, is_signal: bool) -> Self {
        self.is_signal = is_signal;
        self
    }

    pub(super) fn cfa(&self) -> Cfa<'_> {
        match self.cfa {
            Packed::Is(offset) => Cfa::Register(self.cfa_register, offset),
            Packed::IsExpression(span) => Cfa::Expression(self.expression(span)),
            // `new` packs no other form.
            _ => Cfa::Expression(&[]),
        }
    }

    /// Returns the registers that the rule changes, in ascending order.
    pub(super) fn saved(&self) -> impl Iterator<Item = (u8, Saved<'_>)> {
        self.columns.iter().map(|column| (column.register, self.unpack(column.packed)))
    }

    pub(super) fn return_register(&self) -> u8 {
        self.return_register
    }

    pub(super) fn return_address(&self) -> Saved<'_> {
        let column = self.columns.iter().find(|column| column.register == self.return_register);
        column.map_or(Saved::Same, |column| self.unpack(column.packed))
    }

    /// Returns whether the return address is undefined, which marks the outermost frame of a thread.
    pub(super) fn is_end(&self) -> bool {
        self.return_address() == Saved::Undefined
    }

    pub(in crate::stacks) fn is_signal(&self) -> bool {
        self.is_signal
    }

    /// Returns the memory that this takes beside its own size, in bytes.
    pub(in crate::stacks) fn cost(&self) -> usize {
        size_of_val(&self.columns[..]) + self.expressions.len()
    }

    fn expression(&self, (start, length): Span) -> &[u8] {
        self.expressions.get(start.into()..usize::from(start) + usize::from(length)).unwrap_or_default()
    }

    fn unpack(&self, packed: Packed) -> Saved<'_> {
        match packed {
            Packed::Undefined => Saved::Undefined,
            Packed::At(offset) => Saved::At(offset),
            Packed::Is(offset) => Saved::Is(offset),
            Packed::In(register) => Saved::In(register),
            Packed::AtExpression(span) => Saved::AtExpression(self.expression(span)),
            Packed::IsExpression(span) => Saved::IsExpression(self.expression(span)),
        }
    }
}

fn add(expressions: &mut Vec<u8>, bytes: &[u8]) -> Option<Span> {
    if bytes.len() > MAX_EXPRESSION {
        return None;
    }
    let span = (u16::try_from(expressions.len()).ok()?, u16::try_from(bytes.len()).ok()?);
    expressions.extend(bytes);
    Some(span)
}
