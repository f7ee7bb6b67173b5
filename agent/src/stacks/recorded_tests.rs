//! Stacks of real programs, recorded once, are unwound as elfutils unwound them. No root and no such program is needed.
//!
//! A recording has the registers, the words of the stack and the pieces of files that the walk read, and the frames of
//! `eu-stack`. To add one: `snapshot.py PID >FILE` as root, then
//! `PODPERF_RECORD_STACK=FILE:NAME cargo test -p podperf recorded_stacks`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    code::HERE,
    copied,
    dwarf::{self, Before, Call, Code, End, Found, Guess, MAX_BEFORE, MAX_FUNCTION, Memory, Tables, hex::hex, walk},
    elf::Elf,
    maps::{self, Backing},
    read_at::{ReadAt, read_up_to},
};

/// The most frames that are compared: the walk ends there.
const MOST_FRAMES: usize = 127;

/// A file whose reads are recorded.
struct Recorder {
    file: File,
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl ReadAt for Recorder {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.file.read_at(buffer, offset)?;
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.entry(offset).or_default();
        if piece.len() < read {
            *piece = buffer[..read].to_vec();
        }
        Ok(read)
    }
}

/// The pieces of a file that were read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pieces(BTreeMap<u64, Vec<u8>>);

impl ReadAt for Pieces {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let covers = |(start, bytes): &(&u64, &Vec<u8>)| offset - **start < bytes.len() as u64;
        let Some((start, bytes)) = self.0.range(..=offset).rev().find(covers) else { return Ok(0) };
        let rest = &bytes[usize::try_from(offset - start).unwrap()..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    /// The index of the file; `None` for memory without a file.
    file: Option<usize>,
}

/// The code of a program, of real files or of recorded ones.
struct Program<F> {
    mappings: Vec<Mapping>,
    files: Vec<F>,
    /// The tables of each file, and whether it is Go's, once they were needed.
    tables: BTreeMap<usize, Option<(Tables, bool)>>,
}

impl<F: ReadAt> Program<F> {
    fn find(&self, address: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
    }

    /// Returns the file of an address and the offset in it.
    fn place(&self, address: u64) -> Option<(usize, u64)> {
        let mapping = self.find(address)?;
        Some((mapping.file?, address - mapping.start + mapping.offset))
    }

    fn bytes(&self, file: usize, from: u64, to: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        let read = read_up_to(&self.files[file], from, &mut bytes);
        bytes.truncate(read);
        bytes
    }
}

impl<F: ReadAt> Code for Program<F> {
    fn rule(&mut self, address: u64) -> Found {
        let Some(mapping) = self.find(address).cloned() else { return Found::Nowhere };
        let Some(at) = mapping.file else { return Found::NoFile };
        let file = &self.files[at];
        let parse = || {
            let tables = Tables::parse(file).filter(|tables| tables.machine() == HERE)?;
            Some((tables, Elf::parse(file).is_some_and(|elf| elf.go.is_some())))
        };
        let Some((tables, is_go)) = self.tables.entry(at).or_insert_with(parse) else { return Found::NoFile };
        let inside = tables.address_of(address - mapping.start + mapping.offset);
        match inside.and_then(|inside| tables.rule(file, inside).unwrap()) {
            Some(rule) => Found::Rule(Arc::new(rule)),
            None if *is_go => Found::FramePointer,
            None => Found::NoRule,
        }
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        Some(self.is_known_code(address))
    }

    fn is_known_code(&self, address: u64) -> bool {
        self.find(address).is_some()
    }

    fn guesses(&mut self, address: u64) -> Option<Arc<[Guess]>> {
        let Some((file, offset)) = self.place(address) else { return Some(Arc::default()) };
        let first = offset.saturating_sub(MAX_FUNCTION);
        Some(dwarf::guesses(&self.bytes(file, first, offset + MAX_FUNCTION), first, offset))
    }

    fn before(&mut self, return_address: u64) -> Option<Before> {
        let Some((file, offset)) = self.place(return_address - 1) else { return Some(Before::default()) };
        Some(dwarf::before(&self.bytes(file, (offset + 1).saturating_sub(MAX_BEFORE as u64), offset + 1)))
    }

    fn jumps(&mut self, start: u64) -> Option<Arc<[Call]>> {
        let Some((file, offset)) = self.place(start) else { return Some(Arc::default()) };
        Some(dwarf::jumps(&self.bytes(file, offset, offset + MAX_FUNCTION)))
    }
}

/// The words of a stack, and those that were read.
struct Words {
    all: BTreeMap<u64, u64>,
    read: RefCell<BTreeMap<u64, u64>>,
}

impl Memory for Words {
    fn word(&self, address: u64) -> Option<u64> {
        let word = *self.all.get(&address)?;
        self.read.borrow_mut().insert(address, word);
        Some(word)
    }
}

/// A recorded stack.
#[derive(Debug, Default, PartialEq, Eq)]
struct Recorded {
    registers: Vec<u64>,
    words: BTreeMap<u64, u64>,
    mappings: Vec<Mapping>,
    files: Vec<Pieces>,
    /// The addresses of elfutils' frames, leaf first.
    frames: Vec<u64>,
}

impl Recorded {
    /// Unwinds a snapshot by the files of this machine, and records what is read.
    fn record(snapshot: &serde_json::Value) -> Self {
        let numbers = |key: &str| -> Vec<u64> {
            snapshot[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
        };
        let (registers, frames) = (numbers("registers"), numbers("frames"));
        let stack = hex(snapshot["stack"].as_str().unwrap());
        let sp = registers[usize::from(HERE.sp())];
        let words = (0_u64..).zip(stack.chunks_exact(8));
        let all = words.map(|(at, word)| (sp + 8 * at, u64::from_le_bytes(word.try_into().unwrap()))).collect();
        let (mut files, mut paths) = (Vec::new(), Vec::<String>::new());
        let mut mappings = Vec::new();
        for vma in maps::parse(snapshot["maps"].as_str().unwrap().as_bytes()) {
            let file = match &vma.backing {
                Backing::File(file) => Some(paths.iter().position(|path| *path == file.path).unwrap_or_else(|| {
                    files.push(Recorder { file: File::open(&file.path).unwrap(), pieces: RefCell::default() });
                    paths.push(file.path.clone());
                    paths.len() - 1
                })),
                Backing::Anonymous | Backing::Special(_) => None,
            };
            mappings.push(Mapping { start: vma.start, end: vma.end, offset: vma.offset, file });
        }
        let memory = Words { all, read: RefCell::default() };
        let mut program = Program { mappings, files, tables: BTreeMap::new() };
        walk(copied::registers(&registers), &mut program, &memory);
        let files = program.files.into_iter().map(|file| Pieces(file.pieces.into_inner())).collect();
        Self { registers, words: memory.read.into_inner(), mappings: program.mappings, files, frames }
    }

    /// Compares the walk with elfutils' frames.
    fn check(self, name: &str) {
        let memory = Words { all: self.words, read: RefCell::default() };
        let mut program = Program { mappings: self.mappings, files: self.files, tables: BTreeMap::new() };
        let walked = walk(copied::registers(&self.registers), &mut program, &memory);
        let expected: Vec<_> = self.frames.into_iter().take(MOST_FRAMES).collect();
        assert_eq!(walked.frames, expected, "{name}: {:?}", walked.end);
        let is_deep = expected.len() == MOST_FRAMES;
        assert!(
            !walked.guessed && walked.end == if is_deep { End::Deep } else { End::Whole },
            "{name}: {:?}",
            walked.end
        );
    }

    fn text(&self) -> String {
        let mut text = format!("registers {}\nframes {}\n", hex_list(&self.registers), hex_list(&self.frames));
        for Mapping { start, end, offset, file } in &self.mappings {
            let file = file.map_or_else(|| "-".to_owned(), |file| file.to_string());
            writeln!(text, "mapping {start:x} {end:x} {offset:x} {file}").unwrap();
        }
        for (address, word) in &self.words {
            writeln!(text, "word {address:x} {word:x}").unwrap();
        }
        for (file, pieces) in self.files.iter().enumerate() {
            for (offset, bytes) in &pieces.0 {
                let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "piece {file} {offset:x} {bytes}").unwrap();
            }
        }
        text
    }

    fn parse(text: &str) -> Self {
        let mut this = Self::default();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["registers", ref list @ ..] => this.registers = list.iter().map(|word| number(word)).collect(),
                ["frames", ref list @ ..] => this.frames = list.iter().map(|word| number(word)).collect(),
                ["mapping", start, end, offset, file] => this.mappings.push(Mapping {
                    start: number(start),
                    end: number(end),
                    offset: number(offset),
                    file: file.parse().ok(),
                }),
                ["word", address, word] => drop(this.words.insert(number(address), number(word))),
                ["piece", file, offset, piece] => {
                    let file: usize = file.parse().unwrap();
                    this.files.resize_with(this.files.len().max(file + 1), Pieces::default);
                    this.files[file].0.insert(number(offset), hex(piece));
                }
                _ => panic!("not a line of a recording: {line}"),
            }
        }
        let files = this.mappings.iter().filter_map(|mapping| mapping.file).max().map_or(0, |last| last + 1);
        this.files.resize_with(files.max(this.files.len()), Pieces::default);
        this
    }
}

fn hex_list(numbers: &[u64]) -> String {
    numbers.iter().map(|number| format!("{number:x}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn recorded_stacks_are_unwound_as_elfutils_unwound_them() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stacks/recorded");
    let suffix = format!(".{}.txt", std::env::consts::ARCH);
    if let Ok(wanted) = std::env::var("PODPERF_RECORD_STACK") {
        let (snapshot, name) = wanted.split_once(':').expect("FILE:NAME");
        let recorded = Recorded::record(&serde_json::from_str(&fs::read_to_string(snapshot).unwrap()).unwrap());
        fs::write(directory.join(name.to_owned() + &suffix), recorded.text()).unwrap();
    }
    let files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let own: Vec<_> = files.iter().filter(|path| path.to_str().unwrap().ends_with(&suffix)).collect();
    assert!(!own.is_empty() || cfg!(target_arch = "aarch64"), "no recordings");
    for path in own {
        let text = fs::read_to_string(path).unwrap();
        let recorded = Recorded::parse(&text);
        assert_eq!(recorded.text(), text, "{}", path.display());
        recorded.check(&path.display().to_string());
    }
}
