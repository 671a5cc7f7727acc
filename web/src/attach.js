// Files and pasted texts that go with a message, as text.

const kMostBytes = 4 << 20;
export const kLongPaste = 4000; // characters; longer ones become a file

/// {name, text}; throws an Error that says in a sentence why the file cannot go along.
export async function readText(file) {
  if (file.size > kMostBytes) throw new Error(`${file.name} has ${(file.size / (1 << 20)).toFixed(0)} MB; files of up to ${kMostBytes >> 20} MB can be attached.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} is no text (UTF-8), and the model reads only text.`);
  }
  if (text.includes('\0')) throw new Error(`${file.name} holds binary data, and the model reads only text.`);
  return { name: file.name, text };
}
