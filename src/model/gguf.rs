//! The header of a GGUF file: metadata and the table of tensors.
//!
//! It follows the specification at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 1 to 3,
//! little-endian. A file is hostile until shown otherwise: every count and length is compared with the bytes the file
//! still has before anything is allocated for it, and what the metadata takes in memory is bounded by the file's size.

use std::collections::HashSet;

use super::ggml::GgmlType;
use super::metadata::{Metadata, Value};
use super::source::Source;
use crate::{Error, Result};

/// How much of the file is read at first; doubled until the header fits.
const FIRST_READ: u64 = 1 << 20;
/// The longest header accepted. Real ones, with a vocabulary of 256,000 tokens, have about 16 MiB.
const MAX_HEADER: u64 = 128 << 20;
/// What metadata may take in memory even if the file is smaller than this.
const FREE_MEMORY: u64 = 16 << 20;
/// Dimensions of a tensor, as in GGML.
const MAX_DIMS: u32 = 4;
/// Arrays inside arrays inside arrays …
const MAX_NESTING: usize = 4;
/// The longest key or tensor name, as in the specification.
const MAX_NAME: u64 = 65_535;
/// The largest alignment accepted, in bytes.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A tensor as the file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The type of its elements.
    pub ty: GgmlType,
    /// Its shape in GGUF's order, the fastest dimension first: a matrix of `n_rows` rows has `[n_cols, n_rows]`.
    pub shape: Vec<u64>,
    /// Where its bytes start, from the start of the file.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The header of a GGUF file.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// The version of the format: 1, 2 or 3.
    pub version: u32,
    /// All keys but those that hold arrays of arrays, which no known model uses.
    pub metadata: Metadata,
    /// The tensors, in the order of the header.
    pub tensors: Vec<TensorInfo>,
    /// Where the tensors' bytes start, from the start of the file.
    pub data_start: u64,
}

/// What a prefix of a file gave.
#[derive(Debug)]
pub enum Parsed {
    /// The whole header.
    Header(Gguf),
    /// The header goes on behind the prefix: at least this many bytes of the file are needed.
    NeedMore(u64),
}

impl Gguf {
    /// Reads the header of `source`, from a prefix that grows until the header fits.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] when the file is not a sound GGUF file, [`Error::Unsupported`] for big-endian files and
    /// unknown versions, [`Error::Io`] when reading fails.
    pub async fn read<S: Source>(source: &S) -> Result<Self> {
        let len = source.len();
        let mut prefix = Vec::new();
        let mut want = FIRST_READ.min(len);
        loop {
            let have = prefix.len();
            prefix.resize(want as usize, 0);
            source.read(have as u64, &mut prefix[have..]).await?;
            match Self::parse(&prefix, len)? {
                Parsed::Header(gguf) => return Ok(gguf),
                Parsed::NeedMore(at_least) => {
                    if at_least > MAX_HEADER {
                        return Err(damaged(format!("its header is longer than {} MiB", MAX_HEADER >> 20)));
                    }
                    want = (2 * want).max(at_least).min(MAX_HEADER).min(len);
                }
            }
        }
    }

    /// Parses a header from the first bytes of a file that has `file_len` bytes in all.
    ///
    /// # Errors
    /// As [`Gguf::read`], without the reading.
    pub fn parse(prefix: &[u8], file_len: u64) -> Result<Parsed> {
        let mut reader = Reader { bytes: prefix, pos: 0, file_len, wide: true, memory: 0 };
        match header(&mut reader) {
            Ok(gguf) => Ok(Parsed::Header(gguf)),
            Err(Stop::NeedMore(at_least)) => Ok(Parsed::NeedMore(at_least)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// The sentence for a file that is not what it should be.
fn damaged(what: String) -> Error {
    Error::ModelFormat(format!("the model file is damaged: {what}; download or convert it again"))
}

/// Why parsing stopped.
enum Stop {
    NeedMore(u64),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

struct Reader<'a> {
    /// The bytes of the file read so far.
    bytes: &'a [u8],
    pos: usize,
    file_len: u64,
    /// Whether counts and lengths have 64 bits (versions 2 and 3) or 32 (version 1).
    wide: bool,
    /// Bytes of memory that the metadata takes so far.
    memory: u64,
}

impl<'a> Reader<'a> {
    /// Bytes of the file behind the current position.
    fn left(&self) -> u64 {
        self.file_len.saturating_sub(self.pos as u64)
    }

    /// The next `n` bytes, which belong to `what`.
    fn take(&mut self, n: u64, what: &dyn Fn() -> String) -> Result<&'a [u8], Stop> {
        if n > self.left() {
            return Err(damaged(format!("it ends inside {}", what())).into());
        }
        let end = self.pos as u64 + n;
        if end > self.bytes.len() as u64 {
            return Err(Stop::NeedMore(end));
        }
        let piece = &self.bytes[self.pos..end as usize];
        self.pos = end as usize;
        Ok(piece)
    }

    fn array<const N: usize>(&mut self, what: &dyn Fn() -> String) -> Result<[u8; N], Stop> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &dyn Fn() -> String) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count, a length or a dimension.
    fn size(&mut self, what: &dyn Fn() -> String) -> Result<u64, Stop> {
        if self.wide { self.u64(what) } else { Ok(self.u32(what)?.into()) }
    }

    /// Bytes of a count or length.
    fn size_bytes(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    /// A count of things that have at least `least` bytes each.
    fn count(&mut self, least: u64, what: &dyn Fn() -> String) -> Result<usize, Stop> {
        let n = self.size(what)?;
        if n > self.left() / least {
            return Err(damaged(format!("{} counts {n} entries, more than the file can hold", what())).into());
        }
        usize::try_from(n).map_err(|_| damaged(format!("{} counts {n} entries", what())).into())
    }

    fn string(&mut self, longest: u64, what: &dyn Fn() -> String) -> Result<&'a str, Stop> {
        let n = self.size(what)?;
        if n > longest || n > self.left() {
            return Err(damaged(format!("{} has a length of {n} bytes, which cannot be", what())).into());
        }
        let bytes = self.take(n, what)?;
        std::str::from_utf8(bytes).map_err(|_| damaged(format!("{} is not valid UTF-8", what())).into())
    }

    /// Charges `n` things of `size` bytes of memory to the file.
    fn charge(&mut self, n: usize, size: usize, what: &dyn Fn() -> String) -> Result<(), Stop> {
        self.memory = self.memory.saturating_add((n as u64).saturating_mul(size as u64));
        if self.memory > self.file_len.max(FREE_MEMORY) {
            return Err(
                damaged(format!("with {} its metadata takes more memory than the file has bytes", what())).into()
            );
        }
        Ok(())
    }
}

fn header(reader: &mut Reader) -> Result<Gguf, Stop> {
    if reader.take(4, &|| "its first four bytes".into())? != b"GGUF" {
        return Err(Error::ModelFormat(
            "this is not a GGUF file (it does not start with the letters GGUF): choose a .gguf model file".into(),
        )
        .into());
    }
    let version = reader.u32(&|| "its version".into())?;
    match version {
        1 => reader.wide = false,
        2 | 3 => {}
        _ if (1..=3).contains(&version.swap_bytes()) => {
            return Err(Error::Unsupported(
                "this GGUF file is big-endian, and only little-endian files run: convert it on a little-endian machine"
                    .into(),
            )
            .into());
        }
        _ => {
            return Err(Error::Unsupported(format!(
                "this GGUF file has version {version}, and versions 1 to 3 run: convert the model again"
            ))
            .into());
        }
    }
    let least_string = reader.size_bytes();
    // A tensor has a name, the number of dimensions, a type and an offset; a key has a name, a type and a value.
    let n_tensors = reader.count(least_string + 4 + 4 + 8, &|| "the table of tensors".into())?;
    let n_keys = reader.count(least_string + 4 + 1, &|| "the metadata".into())?;

    let mut metadata = Metadata::default();
    let mut nested = HashSet::new();
    for i in 0..n_keys {
        let key = reader.string(MAX_NAME, &|| format!("the name of metadata key {i}"))?;
        let what = || format!("metadata key `{key}`");
        reader.charge(key.len() + 96, 1, &what)?;
        let ty = reader.u32(&what)?;
        let again = match value(reader, ty, 0, &what)? {
            Some(value) => metadata.insert(key.to_owned(), value).is_some(),
            None => metadata.get(key).is_some() || !nested.insert(key),
        };
        if again || (nested.contains(key) && metadata.get(key).is_some()) {
            return Err(damaged(format!("{} stands there twice", what())).into());
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(&Value::Uint(n)) if n.is_power_of_two() && n <= MAX_ALIGNMENT => n,
        Some(value) => {
            return Err(damaged(format!(
                "metadata key `general.alignment` is {value}, not a power of two up to {MAX_ALIGNMENT}"
            ))
            .into());
        }
    };

    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut names = HashSet::new();
    for i in 0..n_tensors {
        let name = reader.string(MAX_NAME, &|| format!("the name of tensor {i}"))?;
        let what = || format!("tensor `{name}`");
        reader.charge(name.len() + 160, 1, &what)?;
        if !names.insert(name) {
            return Err(damaged(format!("{} stands there twice", what())).into());
        }
        tensors.push(tensor(reader, name, &what)?);
    }

    let data_start = (reader.pos as u64).next_multiple_of(alignment);
    check_layout(&mut tensors, data_start, alignment, reader.file_len)?;
    Ok(Gguf { version, metadata, tensors, data_start })
}

/// Reads one entry of the table of tensors; its offset still counts from the start of the data.
fn tensor(reader: &mut Reader, name: &str, what: &dyn Fn() -> String) -> Result<TensorInfo, Stop> {
    let n_dims = reader.u32(what)?;
    if n_dims == 0 || n_dims > MAX_DIMS {
        return Err(damaged(format!("{} has {n_dims} dimensions, not 1 to {MAX_DIMS}", what())).into());
    }
    let mut shape = Vec::with_capacity(n_dims as usize);
    let mut elements = 1u64;
    for _ in 0..n_dims {
        let n = reader.size(what)?;
        elements = elements
            .checked_mul(n)
            .filter(|&n| n > 0)
            .ok_or_else(|| damaged(format!("{} has a dimension of {n}, which cannot be", what())))?;
        shape.push(n);
    }
    let id = reader.u32(what)?;
    let ty = GgmlType::from_id(id).ok_or_else(|| {
        Error::Unsupported(format!(
            "{} has the unknown type {id}: choose a model whose tensors are {}",
            what(),
            GgmlType::READABLE
        ))
    })?;
    if !shape[0].is_multiple_of(ty.block_elements() as u64) {
        return Err(damaged(format!(
            "{} has rows of {} elements, not a multiple of the {} that a block of {} holds",
            what(),
            shape[0],
            ty.block_elements(),
            ty.name()
        ))
        .into());
    }
    let bytes = ty
        .bytes_of(elements)
        .filter(|&bytes| bytes <= reader.file_len)
        .ok_or_else(|| damaged(format!("{} with its shape {shape:?} is larger than the file", what())))?;
    let offset = reader.u64(what)?;
    Ok(TensorInfo { name: name.to_owned(), ty, shape, offset, bytes })
}

/// Makes offsets count from the start of the file, and checks that tensors are aligned, inside the file and apart.
fn check_layout(tensors: &mut [TensorInfo], data_start: u64, alignment: u64, file_len: u64) -> Result<()> {
    for tensor in tensors.iter_mut() {
        let name = &tensor.name;
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(damaged(format!("tensor `{name}` starts at an offset that is no multiple of {alignment}")));
        }
        let end = data_start.checked_add(tensor.offset).and_then(|start| start.checked_add(tensor.bytes));
        if end.is_none_or(|end| end > file_len) {
            return Err(damaged(format!("tensor `{name}` goes past the end of the file ({file_len} bytes)")));
        }
        tensor.offset += data_start;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(damaged(format!("tensors `{}` and `{}` overlap", pair[0].name, pair[1].name)));
        }
    }
    Ok(())
}

/// GGUF's numbers for the types of metadata values.
mod types {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// Reads one value of type `ty`; `None` for an array of arrays, which is checked and left out.
fn value(reader: &mut Reader, ty: u32, depth: usize, what: &dyn Fn() -> String) -> Result<Option<Value>, Stop> {
    Ok(Some(match ty {
        types::U8 | types::U16 | types::U32 | types::U64 => Value::Uint(uint(reader, ty, what)?),
        types::I8 | types::I16 | types::I32 | types::I64 => Value::Int(int(reader, ty, what)?),
        types::F32 | types::F64 => Value::Float(float(reader, ty, what)?),
        types::BOOL => Value::Bool(bool(reader, what)?),
        types::STRING => {
            let string = reader.string(u64::MAX, what)?;
            reader.charge(string.len(), 1, what)?;
            Value::String(string.to_owned())
        }
        types::ARRAY => return array(reader, depth, what),
        _ => return Err(damaged(format!("{} has the unknown type {ty}", what())).into()),
    }))
}

fn array(reader: &mut Reader, depth: usize, what: &dyn Fn() -> String) -> Result<Option<Value>, Stop> {
    let ty = reader.u32(what)?;
    let least = match ty {
        types::U8 | types::I8 | types::BOOL => 1,
        types::U16 | types::I16 => 2,
        types::U32 | types::I32 | types::F32 => 4,
        types::U64 | types::I64 | types::F64 => 8,
        types::STRING => reader.size_bytes(),
        types::ARRAY => 4 + reader.size_bytes(),
        _ => return Err(damaged(format!("{} is an array of the unknown type {ty}", what())).into()),
    };
    let n = reader.count(least, what)?;
    // Numbers are read in one go, so a prefix that is too short is noticed before anything is allocated.
    if !matches!(ty, types::STRING | types::ARRAY) && reader.pos as u64 + n as u64 * least > reader.bytes.len() as u64 {
        return Err(Stop::NeedMore(reader.pos as u64 + n as u64 * least));
    }
    Ok(Some(match ty {
        types::F32 | types::F64 => {
            reader.charge(n, size_of::<f32>(), what)?;
            let mut values = Vec::with_capacity(n);
            for _ in 0..n {
                values.push(float(reader, ty, what)? as f32);
            }
            Value::Floats(values)
        }
        types::STRING => {
            reader.charge(n, size_of::<String>(), what)?;
            let mut values = Vec::with_capacity(n);
            for i in 0..n {
                let what = || format!("string {i} of {}", what());
                let string = reader.string(u64::MAX, &what)?;
                reader.charge(string.len(), 1, &what)?;
                values.push(string.to_owned());
            }
            Value::Strings(values)
        }
        types::ARRAY => {
            if depth + 1 >= MAX_NESTING {
                return Err(damaged(format!("{} nests arrays more than {MAX_NESTING} deep", what())).into());
            }
            for _ in 0..n {
                array(reader, depth + 1, what)?;
            }
            return Ok(None);
        }
        _ => {
            reader.charge(n, size_of::<i64>(), what)?;
            let mut values = Vec::with_capacity(n);
            for _ in 0..n {
                values.push(match ty {
                    types::BOOL => bool(reader, what)?.into(),
                    types::U8 | types::U16 | types::U32 | types::U64 => i64::try_from(uint(reader, ty, what)?)
                        .map_err(|_| damaged(format!("{} holds an integer past 63 bits", what())))?,
                    _ => int(reader, ty, what)?,
                });
            }
            Value::Ints(values)
        }
    }))
}

fn uint(reader: &mut Reader, ty: u32, what: &dyn Fn() -> String) -> Result<u64, Stop> {
    Ok(match ty {
        types::U8 => reader.array::<1>(what)?[0].into(),
        types::U16 => u16::from_le_bytes(reader.array(what)?).into(),
        types::U32 => reader.u32(what)?.into(),
        _ => reader.u64(what)?,
    })
}

fn int(reader: &mut Reader, ty: u32, what: &dyn Fn() -> String) -> Result<i64, Stop> {
    Ok(match ty {
        types::I8 => i8::from_le_bytes(reader.array(what)?).into(),
        types::I16 => i16::from_le_bytes(reader.array(what)?).into(),
        types::I32 => i32::from_le_bytes(reader.array(what)?).into(),
        _ => i64::from_le_bytes(reader.array(what)?),
    })
}

fn float(reader: &mut Reader, ty: u32, what: &dyn Fn() -> String) -> Result<f64, Stop> {
    Ok(match ty {
        types::F32 => f32::from_le_bytes(reader.array(what)?).into(),
        _ => f64::from_le_bytes(reader.array(what)?),
    })
}

fn bool(reader: &mut Reader, what: &dyn Fn() -> String) -> Result<bool, Stop> {
    match reader.array::<1>(what)?[0] {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(damaged(format!("{} is a bool with the value {other}", what())).into()),
    }
}
