//! Parses what [`super::print`] prints.
//!
//! Blanks between the parts of a line do not matter, and `#` starts a comment. Nothing else may differ: fields come
//! by name, in order and complete. Values may be numbered in any order without gaps.
//!
//! What is parsed need not make sense: run [`Graph::verify`] on a graph from outside. The memory it takes is bounded by
//! a multiple of the text's length, and that by [`MAX_TEXT_BYTES`].

use std::str::FromStr;

use kiln_surface::{Extension, Op, ValueId};
use smallvec::SmallVec;
use thiserror::Error;

use super::text::Text;
use super::{Def, Graph, Node, ValueInfo};

/// The longest text that is parsed.
const MAX_TEXT_BYTES: usize = 1 << 26;
/// The most items of a list and the most outputs of a node.
const MAX_ITEMS: usize = 1 << 20;
/// How much of the text an error quotes.
const MAX_QUOTED: usize = 24;

/// A text that is not a graph's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: expected {expected}, found {found}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The character of the line, from 1.
    pub column: usize,
    /// What should stand there.
    pub expected: String,
    /// The beginning of what stands there.
    pub found: String,
}

impl FromStr for Graph {
    type Err = ParseError;

    /// Parses the text form of a graph.
    ///
    /// # Errors
    /// [`ParseError`] if the text is not exactly such a form, if a value is defined twice or left out, and if the text
    /// is longer than 64 MiB or a list in it than 2^20.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut cursor = Cursor { text, at: 0 };
        if text.len() > MAX_TEXT_BYTES {
            return Err(cursor.error(format!("at most {MAX_TEXT_BYTES} bytes of text")));
        }
        cursor.skip_lines();
        cursor.expect_word("graph")?;
        let scalars = cursor.field("scalars", true)?;
        let draws = cursor.field("draws", true)?;
        let mut graph = Graph { scalars, draws, ..Graph::default() };
        let mut defs = Vec::new();
        loop {
            cursor.end_line()?;
            if cursor.eat_word("return") {
                break;
            }
            line(&mut cursor, &mut graph.nodes, &mut defs)?;
        }
        if cursor.peek() == Some('%') {
            graph.outputs = cursor.items()?;
        }
        cursor.end_line()?;
        if !cursor.rest().is_empty() {
            return Err(cursor.error("the end of the text"));
        }
        graph.values = in_order(defs)?;
        Ok(graph)
    }
}

/// The definition of a value, and where it stands.
struct Defined<'a> {
    id: ValueId,
    info: ValueInfo,
    at: Cursor<'a>,
}

/// An input or a node.
fn line<'a>(
    cursor: &mut Cursor<'a>,
    nodes: &mut Vec<Node>,
    defs: &mut Vec<Defined<'a>>,
) -> Result<(), ParseError> {
    let first = defs.len();
    let node = nodes.len() as u32;
    while cursor.peek() == Some('%') || defs.len() > first {
        let at = cursor.clone();
        let id = ValueId::parse(cursor)?;
        cursor.expect(":")?;
        let kind = Text::parse(cursor)?;
        let meta = Text::parse(cursor)?;
        let output = (defs.len() - first) as u32;
        defs.push(Defined { id, info: ValueInfo { meta, kind, def: Def::Node { node, output } }, at });
        if cursor.eat("=") {
            break;
        }
        cursor.expect_either(",", "=", defs.len() - first)?;
    }
    if let [input] = &mut defs[first..]
        && cursor.eat_word("input")
    {
        input.info.def = Def::Input;
        return Ok(());
    }
    let op = parse_op(cursor)?;
    nodes.push(Node { op, outputs: defs[first..].iter().map(|def| def.id).collect::<SmallVec<_>>() });
    Ok(())
}

/// The values by their numbers, which have no gap.
fn in_order(mut defs: Vec<Defined<'_>>) -> Result<Vec<ValueInfo>, ParseError> {
    defs.sort_by_key(|def| def.id); // stable, so that an error names the second definition
    for (number, def) in defs.iter().enumerate() {
        if (def.id.0 as usize) < number {
            return Err(def.at.error("a value that is not yet defined"));
        }
        if def.id.0 as usize > number {
            return Err(def.at.error(format!("numbers without a gap, but nothing defines %{number}")));
        }
    }
    Ok(defs.into_iter().map(|def| def.info).collect())
}

macro_rules! define_parse_op {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        fn parse_op(cursor: &mut Cursor<'_>) -> Result<Op, ParseError> {
            let start = cursor.clone();
            let name = cursor.word();
            let mut parser = Fields { cursor, first: true };
            let op = match name {
                $($(stringify!($op) => {
                    parser.begin()?;
                    Op::$op { $($field: parser.field(stringify!($field))?),* }
                })*)*
                "extension" => {
                    parser.begin()?;
                    Op::extension(Extension {
                        name: parser.field("name")?,
                        attributes: parser.field("attributes")?,
                        inputs: parser.field("inputs")?,
                        scalars: parser.field("scalars")?,
                    })
                }
                _ => return Err(start.error("an operation, `input` or `return`")),
            };
            parser.end()?;
            Ok(op)
        }
    };
}
kiln_surface::with_backend_methods! { define_parse_op! {} }

/// The fields of an operation.
struct Fields<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    first: bool,
}

impl Fields<'_, '_> {
    fn begin(&mut self) -> Result<(), ParseError> {
        self.cursor.expect("(")
    }

    fn field<T: Text>(&mut self, name: &str) -> Result<T, ParseError> {
        self.cursor.field(name, std::mem::take(&mut self.first))
    }

    fn end(&mut self) -> Result<(), ParseError> {
        self.cursor.expect(")")
    }
}

/// A position in a text. What it reads may have blanks before it, but no end of a line.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
        if self.rest().starts_with('#') {
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Skips blank lines.
    fn skip_lines(&mut self) {
        self.skip_blanks();
        while self.rest().starts_with('\n') {
            self.at += 1;
            self.skip_blanks();
        }
    }

    /// The end of the line or the text, and blank lines after it.
    fn end_line(&mut self) -> Result<(), ParseError> {
        match self.peek() {
            None | Some('\n') => self.skip_lines(),
            Some(_) => return Err(self.error("the end of the line")),
        }
        Ok(())
    }

    fn peek(&mut self) -> Option<char> {
        self.skip_blanks();
        self.rest().chars().next()
    }

    /// Takes all characters that `wanted` takes.
    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        self.skip_blanks();
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !wanted(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// Takes a name; it may be empty.
    fn word(&mut self) -> &'a str {
        self.take(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// An error at the cursor.
    pub(super) fn error(&self, expected: impl Into<String>) -> ParseError {
        let mut cursor = self.clone();
        cursor.skip_blanks();
        let (before, rest) = cursor.text.split_at(cursor.at);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = rest.lines().next().unwrap_or_default();
        let found = match line.char_indices().nth(MAX_QUOTED) {
            _ if rest.is_empty() => "the end of the text".into(),
            _ if line.is_empty() => "the end of the line".into(),
            Some((end, _)) => format!("`{}...`", &line[..end]),
            None => format!("`{line}`"),
        };
        ParseError {
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            expected: expected.into(),
            found,
        }
    }

    /// Takes a sign if it comes next.
    pub(super) fn eat(&mut self, sign: &str) -> bool {
        self.skip_blanks();
        let found = self.rest().starts_with(sign);
        self.at += if found { sign.len() } else { 0 };
        found
    }

    /// Takes a whole name if it comes next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let mut ahead = self.clone();
        let found = ahead.word() == word;
        if found {
            *self = ahead;
        }
        found
    }

    /// Takes a sign.
    pub(super) fn expect(&mut self, sign: &str) -> Result<(), ParseError> {
        if self.eat(sign) { Ok(()) } else { Err(self.error(format!("`{sign}`"))) }
    }

    /// Takes a whole name.
    pub(super) fn expect_word(&mut self, word: &str) -> Result<(), ParseError> {
        if self.eat_word(word) { Ok(()) } else { Err(self.error(format!("`{word}`"))) }
    }

    /// Takes the sign between two of the `count` items so far and a further one, where `end` could stand as well.
    fn expect_either(&mut self, comma: &str, end: &str, count: usize) -> Result<(), ParseError> {
        if count >= MAX_ITEMS {
            return Err(self.error(format!("`{end}`, as there are at most {MAX_ITEMS} items")));
        }
        if self.eat(comma) { Ok(()) } else { Err(self.error(format!("`{comma}` or `{end}`"))) }
    }

    /// Takes one of the words, and gives what belongs to it.
    pub(super) fn choice<T: Clone>(&mut self, words: &[(&str, T)]) -> Result<T, ParseError> {
        let start = self.clone();
        let word = self.word();
        match words.iter().find(|(candidate, _)| *candidate == word) {
            Some((_, value)) => Ok(value.clone()),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
                Err(start.error(words.join(" or ")))
            }
        }
    }

    /// Takes an integer.
    pub(super) fn integer<T: FromStr>(&mut self, expected: &str) -> Result<T, ParseError> {
        self.skip_blanks();
        let start = self.clone();
        self.eat("-");
        self.at += self.rest().bytes().take_while(u8::is_ascii_digit).count();
        self.text[start.at..self.at].parse().map_err(|_| start.error(expected))
    }

    /// Takes a number right after a sign: `%3`.
    pub(super) fn prefixed(&mut self, sign: &str, what: &str) -> Result<u32, ParseError> {
        let start = self.clone();
        let found = self.eat(sign) && self.rest().starts_with(|c: char| c.is_ascii_digit());
        let number = if found { self.integer(what).ok() } else { None };
        number.ok_or_else(|| start.error(format!("{what} like `{sign}0`")))
    }

    /// Takes a float.
    pub(super) fn float(&mut self) -> Result<f64, ParseError> {
        let start = self.clone();
        let token = self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        let value = match token {
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            "nan" if !self.rest().starts_with('(') => Some(f64::NAN),
            "nan" => self.nan_bits(),
            _ if token.contains(|c: char| c.is_ascii_alphabetic() && c != 'e') => None,
            _ => token.parse().ok().filter(|value: &f64| value.is_finite()),
        };
        value.ok_or_else(|| start.error("a number (f64)"))
    }

    /// The `(0x..)` after `nan`.
    fn nan_bits(&mut self) -> Option<f64> {
        self.expect("(0x").ok()?;
        let bits = u64::from_str_radix(self.word(), 16).ok()?;
        self.expect(")").ok()?;
        Some(f64::from_bits(bits)).filter(|value| value.is_nan())
    }

    /// Takes a quoted string.
    pub(super) fn string(&mut self) -> Result<String, ParseError> {
        self.expect("\"")?;
        let mut string = String::new();
        loop {
            let start = self.clone();
            let mut chars = self.rest().chars();
            let c = match chars.next() {
                Some('"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some('\\') => match chars.next() {
                    Some(c @ ('"' | '\\')) => c,
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some('u') => {
                        let code = chars.as_str().strip_prefix('{').and_then(|code| code.split_once('}'));
                        let char = code.and_then(|(code, rest)| {
                            chars = rest.chars();
                            u32::from_str_radix(code, 16).ok().and_then(char::from_u32)
                        });
                        char.ok_or_else(|| start.error("a character as `\\u{1b}`"))?
                    }
                    _ => return Err(start.error("`\\\"`, `\\\\`, `\\n`, `\\r`, `\\t` or `\\u{..}`")),
                },
                Some(c) if !c.is_control() => c,
                _ => return Err(start.error("`\"`")),
            };
            string.push(c);
            self.at = self.text.len() - chars.as_str().len();
        }
    }

    /// Takes items with commas between them, of which there is at least one.
    fn items<T: Text>(&mut self) -> Result<Vec<T>, ParseError> {
        let mut items = vec![T::parse(self)?];
        while self.eat(",") {
            if items.len() >= MAX_ITEMS {
                return Err(self.error(format!("at most {MAX_ITEMS} items")));
            }
            items.push(T::parse(self)?);
        }
        Ok(items)
    }

    /// Takes `[a, b]`.
    pub(super) fn list<T: Text>(&mut self) -> Result<Vec<T>, ParseError> {
        self.expect("[")?;
        if self.eat("]") {
            return Ok(Vec::new());
        }
        let items = self.items()?;
        if self.eat("]") { Ok(items) } else { Err(self.error("`,` or `]`")) }
    }

    /// Takes `name=value`, after a comma unless it is the first.
    pub(super) fn field<T: Text>(&mut self, name: &str, first: bool) -> Result<T, ParseError> {
        if !first {
            self.expect(",")?;
        }
        self.expect_word(name)?;
        self.expect("=")?;
        T::parse(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
graph scalars=1 draws=0
%0: float f32[2, 3] = input
%1: float f32[2, 3] = float_powi_scalar(lhs=%0, rhs=2:int)
%2: float f32[1, 3] = float_slice(tensor=%1, slices=[0..1;1])
%3: float f32[1, 3] = layer_norm(tensor=%2, gamma=%0, beta=none, epsilon=1e-5)
%4: float f32[1] = extension(name=\"a\", attributes=\"b\", inputs=[], scalars=[s0:float])
return %2, %3
";

    fn error(text: &str) -> String {
        text.parse::<Graph>().unwrap_err().to_string()
    }

    /// The error after a change to `TEXT`.
    fn changed(from: &str, to: &str) -> String {
        assert_eq!(TEXT.matches(from).count(), 1, "{from}");
        error(&TEXT.replace(from, to))
    }

    #[test]
    fn blanks_and_comments_do_not_matter() {
        let loose = "\
# A graph.

  graph  scalars = 1\tdraws=0 # counts\r
\t%0:float f32 [ 2,3 ]=input#end

%1: float f32[2, 3] = float_powi_scalar ( lhs = %0 , rhs=2 : int )
%2: float f32[1, 3] = float_slice(tensor=%1, slices=[0 .. 1 ; 1])
%3: float f32[1, 3] = layer_norm(tensor=%2, gamma=%0, beta=none, epsilon=1e-5)
# %9 is no value
%4: float f32[1] = extension(name=\"a\", attributes=\"b\", inputs=[], scalars=[ s0 : float ])
return %2 , %3";
        assert_eq!(loose.parse::<Graph>(), TEXT.parse::<Graph>());
        assert!(loose.parse::<Graph>().is_ok());
    }

    #[test]
    fn errors_say_where_and_what() {
        assert_eq!(error(""), "line 1, column 1: expected `graph`, found the end of the text");
        assert_eq!(
            error("graph scalars=1 draws=0\n"),
            "line 2, column 1: expected an operation, `input` or `return`, found the end of the text"
        );
        let cases = [
            ("draws=0", "draws=-1", "line 1, column 23: expected a number (u32), found `-1`"),
            ("draws=0", "draws=0 1", "line 1, column 25: expected the end of the line, found `1`"),
            (
                "= input",
                "=",
                "line 2, column 22: expected an operation, `input` or `return`, found the end of the line",
            ),
            ("f32[2, 3] = input", "[2, 3] = input", "line 2, column 11: expected `f64` or `f32` or"),
            (
                "f32[2, 3] = input",
                "f32[2, 3 = input",
                "line 2, column 20: expected `,` or `]`, found `= input`",
            ),
            (
                "float f32[2, 3] = input",
                "real f32[2, 3] = input",
                "line 2, column 5: expected `float` or `int` or",
            ),
            ("lhs=%0", "rhs=%0", "line 3, column 41: expected `lhs`, found `rhs=%0, rhs=2:int)`"),
            ("lhs=%0, rhs", "lhs=%0 rhs", "line 3, column 48: expected `,`, found `rhs=2:int)`"),
            ("lhs=%0", "lhs=% 0", "line 3, column 45: expected a value like `%0`"),
            ("lhs=%0", "lhs=%4294967296", "line 3, column 45: expected a value like `%0`"),
            ("rhs=2:int", "rhs=2", "line 3, column 54: expected `:`, found `)`"),
            ("rhs=2:int", "rhs=2.5:int", "line 3, column 54: expected `:`, found `.5:int)`"),
            ("rhs=2:int", "rhs=x:int", "line 3, column 53: expected a number (f64), found `x:int)`"),
            (
                "float_slice",
                "float_slices",
                "line 4, column 23: expected an operation, `input` or `return`, found",
            ),
            ("0..1;1", "0..1", "line 4, column 58: expected `;`, found `])`"),
            (
                "beta=none",
                "beta=maybe",
                "line 5, column 60: expected a value like `%0`, found `maybe, epsilon=1e-5)`",
            ),
            ("1e-5", "1e999", "line 5, column 74: expected a number (f64), found `1e999)`"),
            ("1e-5", "nan(0x1)", "line 5, column 74: expected a number (f64), found `nan(0x1))`"),
            ("\"b\"", "\"b", "line 6, column 85: expected `\"`, found the end of the line"),
            (
                "\"a\"",
                "\"\\a\"",
                "line 6, column 36: expected `\\\"`, `\\\\`, `\\n`, `\\r`, `\\t` or `\\u{..}`",
            ),
            ("\"a\"", "\"\\u{d800}\"", "line 6, column 36: expected a character as `\\u{1b}`"),
            (
                "s0:float",
                "s0:real",
                "line 6, column 79: expected `float` or `int` or `uint` or `bool`, found `real])`",
            ),
            (
                "%4: float",
                "%3: float",
                "line 6, column 1: expected a value that is not yet defined, found `%3: float f32",
            ),
            (
                "%4: float",
                "%6: float",
                "line 6, column 1: expected numbers without a gap, but nothing defines %4",
            ),
            ("%2, %3\n", "%2, %3\n%5", "line 8, column 1: expected the end of the text, found `%5`"),
            (
                "%2, %3\n",
                "%2, %3,\n",
                "line 7, column 15: expected a value like `%0`, found the end of the line",
            ),
        ];
        let mut failures = String::new();
        for (from, to, want) in cases {
            let error = changed(from, to);
            if !error.starts_with(want) {
                failures += &format!("{from} to {to}:\n  {error}\n");
            }
        }
        assert!(failures.is_empty(), "{failures}");
    }

    #[test]
    fn long_text_is_quoted_in_part() {
        let error = error("graph scalars=é1 draws=0 and more of that, éééé");
        assert_eq!(error, "line 1, column 15: expected a number (u32), found `é1 draws=0 and more of t...`");
    }

    #[test]
    fn large_things_are_refused() {
        let list = "1,".repeat(MAX_ITEMS);
        let text = format!("graph scalars=0 draws=0\n%0: int i64[{list}1] = input\nreturn\n");
        assert!(error(&text).contains("expected at most 1048576 items"));
        let text = "x".repeat(MAX_TEXT_BYTES + 1);
        assert!(error(&text).contains("expected at most 67108864 bytes of text"));
    }
}
