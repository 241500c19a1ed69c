pub struct ParseError;
