// Copying, also where the page came without TLS from another machine (there is no navigator.clipboard then).

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'sr';
  document.body.append(area);
  const before = document.activeElement;
  area.select();
  document.execCommand('copy');
  area.remove();
  before?.focus();
}

/// Copies, and says so on the button for a moment.
export async function copyFrom(button, text) {
  await copy(text);
  const label = button.textContent;
  if (label === 'Copied') return;
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = label), 1200);
}
