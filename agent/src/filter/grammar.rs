//! The grammar: `||` binds weaker than `&&`, and `&&` binds weaker than `!` and the comparisons.
//!
//! ```text
//! either  = all { "||" all }
//! all     = not { "&&" not }
//! not     = "!" not | "(" either ")" | field operator value
//! ```
//!
//! The result is a list of alternatives. Each term of an alternative has a flag that tells whether it must hold: `!` is
//! pushed down to the terms, and `&&` is multiplied out over `||`.

use super::{
    FilterError,
    terms::{self, FIELDS, Term},
};

/// Terms with a flag each: the term must hold, or must not hold.
pub(super) type Alternative = Vec<(Term, bool)>;

/// The largest depth of nested brackets and negations.
const MAX_DEPTH: usize = 64;

/// Returns the alternatives of an expression; an error if they have more than `most` terms.
pub(super) fn alternatives(expression: &str, most: usize) -> Result<Vec<Alternative>, FilterError> {
    let mut parser = Parser { expression, tokens: tokens(expression)?, next: 0, depth: 0 };
    let tree = parser.either()?;
    if let Some(token) = parser.peek() {
        return Err(parser.error_at(token.column, format!("`{}` is unexpected (`&&` or `||`?)", token.text)));
    }
    tree.alternatives(true, most)
        .ok_or_else(|| parser.error(format!("too many terms, with `&&` multiplied out over `||` (at most {most})")))
}

/// The syntax tree of an expression.
enum Tree {
    Term(Term, bool),
    Not(Box<Self>),
    All(Vec<Self>),
    Either(Vec<Self>),
}

impl Tree {
    /// Returns the alternatives in which the tree holds, or does not hold; `None` if they have more than `most` terms.
    fn alternatives(&self, holds: bool, most: usize) -> Option<Vec<Alternative>> {
        match (self, holds) {
            (Self::Term(term, positive), _) => Some(vec![vec![(term.clone(), *positive == holds)]]),
            (Self::Not(tree), _) => tree.alternatives(!holds, most),
            (Self::Either(trees), true) | (Self::All(trees), false) => {
                let mut sum = Vec::new();
                for tree in trees {
                    sum.extend(tree.alternatives(holds, most)?);
                    if terms_of(&sum) > most {
                        return None;
                    }
                }
                Some(sum)
            }
            (Self::All(trees), true) | (Self::Either(trees), false) => {
                let mut product: Vec<Alternative> = vec![Vec::new()];
                for tree in trees {
                    let factor = tree.alternatives(holds, most)?;
                    if terms_of(&product) * factor.len() + terms_of(&factor) * product.len() > most {
                        return None;
                    }
                    let pairs =
                        product.iter().flat_map(|one| factor.iter().map(move |other| [&one[..], other].concat()));
                    product = pairs.collect();
                }
                Some(product)
            }
        }
    }
}

fn terms_of(alternatives: &[Alternative]) -> usize {
    alternatives.iter().map(Vec::len).sum()
}

#[derive(Clone, Debug)]
struct Token {
    text: String,
    /// The token was in quotes, so it is never an operator.
    quoted: bool,
    column: usize,
}

struct Parser<'a> {
    expression: &'a str,
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
}

const OPERATORS: [&str; 11] = ["||", "&&", "==", "!=", ">=", "<=", ">", "<", "!", "(", ")"];

fn tokens(expression: &str) -> Result<Vec<Token>, FilterError> {
    let characters: Vec<char> = expression.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < characters.len() {
        let column = at;
        let rest = |at: usize, text: &str| text.chars().enumerate().all(|(n, c)| characters.get(at + n) == Some(&c));
        if characters[at].is_whitespace() {
            at += 1;
        } else if let Some(operator) = OPERATORS.into_iter().find(|operator| rest(at, operator)) {
            at += operator.len();
            tokens.push(Token { text: operator.to_owned(), quoted: false, column });
        } else if characters[at] == '"' {
            let end = characters[at + 1..].iter().position(|c| *c == '"');
            let Some(length) = end else {
                let message = "a quote without its end (add `\"`)".to_owned();
                return Err(FilterError { expression: expression.to_owned(), column, message });
            };
            tokens.push(Token { text: characters[at + 1..=at + length].iter().collect(), quoted: true, column });
            at += length + 2;
        } else if is_word(characters[at]) {
            let end = characters[at..].iter().position(|c| !is_word(*c)).map_or(characters.len(), |n| at + n);
            tokens.push(Token { text: characters[at..end].iter().collect(), quoted: false, column });
            at = end;
        } else {
            let hint = match characters[at] {
                '=' => "write `==`",
                '&' => "write `&&`",
                '|' => "write `||`",
                _ => "put texts in quotes",
            };
            let message = format!("`{}` is unexpected ({hint})", characters[at]);
            return Err(FilterError { expression: expression.to_owned(), column, message });
        }
    }
    Ok(tokens)
}

/// Returns whether fields, numbers, durations, names and paths may contain this character.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || "_./*:-@%+~".contains(c)
}

impl Parser<'_> {
    fn either(&mut self) -> Result<Tree, FilterError> {
        let mut trees = vec![self.all()?];
        while self.take("||") {
            trees.push(self.all()?);
        }
        Ok(Tree::Either(trees))
    }

    fn all(&mut self) -> Result<Tree, FilterError> {
        let mut trees = vec![self.not()?];
        while self.take("&&") {
            trees.push(self.not()?);
        }
        Ok(Tree::All(trees))
    }

    fn not(&mut self) -> Result<Tree, FilterError> {
        self.depth += 1;
        let tree = if self.depth > MAX_DEPTH {
            return Err(self.error(format!("nested too deeply (at most {MAX_DEPTH} times)")));
        } else if self.take("!") {
            Tree::Not(Box::new(self.not()?))
        } else if self.take("(") {
            let tree = self.either()?;
            if !self.take(")") {
                return Err(self.error("a bracket without its end (add `)`)".into()));
            }
            tree
        } else {
            self.term()?
        };
        self.depth -= 1;
        Ok(tree)
    }

    fn term(&mut self) -> Result<Tree, FilterError> {
        let field = self.word("a field")?;
        let column = self.column();
        let operator = self.word("an operator")?;
        let value_column = self.column();
        let (term, holds) = if field.text == "duration" && !field.quoted {
            let value = self.word("a duration")?;
            let at_least = match operator.text.as_str() {
                ">" | ">=" => true,
                "<" | "<=" => false,
                _ => return Err(self.error_at(column, "a duration is compared by `>`, `>=`, `<` or `<=`".into())),
            };
            (terms::at_least(&value.text), at_least)
        } else {
            let value = self.word("a value")?;
            let equal = match operator.text.as_str() {
                "==" => true,
                "!=" => false,
                _ => return Err(self.error_at(column, format!("`{}` is compared by `==` or `!=`", field.text))),
            };
            let term = terms::term(&field.text, &value.text).ok_or_else(|| {
                self.error_at(field.column, format!("unknown field `{}` (one of {})", field.text, FIELDS.join(", ")))
            })?;
            (term, equal)
        };
        let term = term.map_err(|message| self.error_at(value_column, message))?;
        Ok(Tree::Term(term, holds))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    /// Returns the position of the next token.
    fn column(&self) -> usize {
        self.peek().map_or_else(|| self.expression.chars().count(), |token| token.column)
    }

    /// Consumes this operator if it is the next token.
    fn take(&mut self, operator: &str) -> bool {
        let is_next = self.peek().is_some_and(|token| !token.quoted && token.text == operator);
        self.next += usize::from(is_next);
        is_next
    }

    fn word(&mut self, what: &str) -> Result<Token, FilterError> {
        let token = self.peek().cloned().ok_or_else(|| self.error(format!("{what} is missing")))?;
        let is_operator = !token.quoted && OPERATORS.contains(&token.text.as_str());
        if is_operator != (what == "an operator") {
            return Err(self.error(format!(
                "`{}` is no {}",
                token.text,
                what.trim_start_matches("an ").trim_start_matches("a ")
            )));
        }
        self.next += 1;
        Ok(token)
    }

    fn error(&self, message: String) -> FilterError {
        self.error_at(self.column(), message)
    }

    fn error_at(&self, column: usize, message: String) -> FilterError {
        FilterError { expression: self.expression.to_owned(), column, message }
    }
}
