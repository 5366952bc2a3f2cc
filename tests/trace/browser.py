"""A headless Chromium, driven over its DevTools pipe with nothing but Python's standard library."""
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ('chromium', 'chromium-browser', 'google-chrome')

# Keys that are not characters, with the code that Windows gives them, which Chromium wants.
CODES = {'ArrowLeft': 37, 'ArrowUp': 38, 'ArrowRight': 39, 'ArrowDown': 40, 'Home': 36, 'End': 35, 'PageUp': 33,
         'PageDown': 34, 'Enter': 13, 'Escape': 27, 'Tab': 9, 'Backspace': 8}


def program():
    """The path of a Chromium; None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Broken(Exception):
    """The browser ended, did not answer, or a script in the page threw."""


class Browser:
    """One tab. Whatever the page logs or throws is in self.complaints."""

    def __init__(self, path, patience=60):
        self.patience, self.next_id, self.loaded, self.complaints = patience, 0, set(), []
        self.answers, self.opened = {}, 0
        self.folder = tempfile.mkdtemp(prefix='tenon-browser-')
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        ends = [os.dup(theirs_in), os.dup(theirs_out)]

        def ends_as_3_and_4():
            spare = [os.dup2(end, 100 + i) for i, end in enumerate(ends)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self.process = subprocess.Popen(
            [path, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
             '--disable-extensions', '--disable-component-update', '--disable-background-networking', '--disable-sync',
             '--disable-gpu-vsync', '--disable-frame-rate-limit', '--hide-scrollbars', '--remote-debugging-pipe', f'--user-data-dir={self.folder}',
             'about:blank'],
            close_fds=False, preexec_fn=ends_as_3_and_4, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in [theirs_in, theirs_out, *ends]:
            os.close(end)
        self.to, self.of, self.pending, self.session = ours_out, ours_in, b'', None
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self.call(domain + '.enable')
        self.call('Page.setLifecycleEventsEnabled', enabled=True)

    def close(self):
        """Ends the browser and removes what it wrote."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.of)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- messages ----

    def _message(self, until):
        while b'\0' not in self.pending:
            if not select.select([self.of], [], [], max(0, until - time.monotonic()))[0]:
                raise Broken('the browser does not answer')
            more = os.read(self.of, 1 << 20)
            if not more:
                raise Broken(f'the browser ended ({self.process.poll()})')
            self.pending += more
        first, self.pending = self.pending.split(b'\0', 1)
        return json.loads(first)

    def _note(self, message):
        params = message.get('params', {})
        if message['method'] == 'Page.lifecycleEvent' and params['name'] == 'load':
            self.loaded.add(params['loaderId'])
        if message['method'] == 'Runtime.exceptionThrown':
            details = params['exceptionDetails']
            self.complaints.append(details.get('exception', {}).get('description', details['text']))
        if message['method'] == 'Runtime.consoleAPICalled':
            self.complaints.append('console: ' + ' '.join(str(a.get('value')) for a in params['args']))
        if message['method'] == 'Log.entryAdded':
            self.complaints.append('log: ' + params['entry']['text'])

    def send(self, method, **params):
        """A command of the protocol; its number, for answer()."""
        self.next_id += 1
        message = {'id': self.next_id, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        data = json.dumps(message).encode() + b'\0'
        while data:
            data = data[os.write(self.to, data):]
        return self.next_id

    def answer(self, number, method=''):
        """The result of a command that was sent. Answers to later ones may come first."""
        until = time.monotonic() + self.patience
        while number not in self.answers:
            message = self._message(until)
            if 'method' in message:
                self._note(message)
            else:
                self.answers[message['id']] = message
        answer = self.answers.pop(number)
        if 'error' in answer:
            raise Broken(f"{method}: {answer['error']['message']}")
        return answer['result']

    def call(self, method, **params):
        """A command of the protocol; its result."""
        return self.answer(self.send(method, **params), method)

    # ---- what a reader does ----

    def open(self, url):
        """Loads a page and waits until it is there. Always a new one, even where only the hash differs."""
        self.opened += 1
        path, sign, anchor = url.partition('#')
        loader = self.call('Page.navigate', url=f'{path}?{self.opened}{sign}{anchor}')['loaderId']
        until = time.monotonic() + self.patience
        while loader not in self.loaded:
            message = self._message(until)
            if 'method' in message:
                self._note(message)

    def js(self, expression):
        """The value of an expression in the page."""
        result = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in result:
            raise Broken(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result['result'].get('value')

    def press(self, key, times=1, shift=False):
        """A key, as the keyboard sends it: a name or one character."""
        text = key if len(key) == 1 else '\r' if key == 'Enter' else ''
        event = {'key': key, 'windowsVirtualKeyCode': CODES.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0),
                 'modifiers': 8 if shift else 0}
        sent = []
        for _ in range(times):
            sent.append(self.send('Input.dispatchKeyEvent', type='keyDown' if text else 'rawKeyDown', text=text, **event))
            sent.append(self.send('Input.dispatchKeyEvent', type='keyUp', **event))
        for number in sent:
            self.answer(number, 'Input.dispatchKeyEvent')

    def write(self, text):
        """Puts a text where the cursor is."""
        self.call('Input.insertText', text=text)

    def click(self, selector):
        """The left mouse button in the middle of an element."""
        x, y = self.js('(() => { const r = document.querySelector(%s).getBoundingClientRect();'
                       ' return [r.x + r.width / 2, r.y + r.height / 2] })()' % json.dumps(selector))
        for kind in ('mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', clickCount=1)

    def hover(self, selector, across=0.5, down=0.5):
        """The mouse on an element, so far from its left and top edge."""
        x, y = self.js("(() => { const e = document.querySelector(%s); e.scrollIntoView({ block: 'nearest' });"
                       ' const r = e.getBoundingClientRect(); return [r.x + r.width * %r, r.y + r.height * %r] })()'
                       % (json.dumps(selector), across, down))
        self.call('Input.dispatchMouseEvent', type='mouseMoved', x=x, y=y)

    def window(self, width, height):
        """The size of the page."""
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features):
        """What the reader prefers, such as prefers_color_scheme='dark'; media='print' for paper."""
        kind = features.pop('media', '')
        self.call('Emulation.setEmulatedMedia', media=kind,
                  features=[{'name': k.replace('_', '-'), 'value': v} for k, v in features.items()])
