pub struct VerifyError;
