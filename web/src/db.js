// Conversations in the browser's IndexedDB: `heads` for the list, `bodies` with the messages, written together.

let opened = null;

function open() {
  opened ??= new Promise((done, failed) => {
    const request = indexedDB.open('riptide', 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore('heads', { keyPath: 'id' });
      request.result.createObjectStore('bodies', { keyPath: 'id' });
    };
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
    request.onblocked = () => failed(new Error('another tab holds an older version'));
  });
  return opened;
}

/// Runs `act` in one transaction: all of it happens, or nothing.
async function transact(mode, act) {
  const db = await open();
  return new Promise((done, failed) => {
    const transaction = db.transaction(['heads', 'bodies'], mode);
    const request = act(transaction.objectStore('heads'), transaction.objectStore('bodies'));
    transaction.oncomplete = () => done(request?.result);
    transaction.onabort = transaction.onerror = () => failed(transaction.error ?? new Error('the browser refused to store it'));
  });
}

const headOf = ({ id, title, at, updated }) => ({ id, title, at, updated });

/// The newest first.
export async function listHeads() {
  const heads = await transact('readonly', (heads) => heads.getAll());
  return heads.sort((a, b) => b.updated - a.updated);
}
export const readConversation = (id) => transact('readonly', (_, bodies) => bodies.get(id));
export const readAll = () => transact('readonly', (_, bodies) => bodies.getAll());
export const writeAll = (conversations) =>
  transact('readwrite', (heads, bodies) => {
    for (const conversation of conversations) {
      heads.put(headOf(conversation));
      bodies.put(conversation);
    }
  });
export const removeConversation = (id) =>
  transact('readwrite', (heads, bodies) => {
    heads.delete(id);
    bodies.delete(id);
  });
