// Serves AWS KMS' protocol on one address, which its own program cannot be told:
// `local-kms ADDRESS FOLDER REGION [KEY_ID=PEM_FILE]...`. Keys of the command line are put into the folder first.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	kms "github.com/nsmithuk/local-kms/src"
	"github.com/nsmithuk/local-kms/src/cmk"
	"github.com/nsmithuk/local-kms/src/config"
	"github.com/nsmithuk/local-kms/src/data"
	"gopkg.in/yaml.v2"
)

func main() {
	if len(os.Args) < 4 {
		log.Fatal("local-kms ADDRESS FOLDER REGION [KEY_ID=PEM_FILE]...")
	}
	address, folder := os.Args[1], os.Args[2]
	config.AWSAccountId, config.AWSRegion, config.DatabasePath = "111122223333", os.Args[3], folder
	keys := data.NewDatabase(folder)
	defer keys.Close()
	for _, given := range os.Args[4:] {
		id, file, _ := strings.Cut(given, "=")
		if err := restore(keys, id, file); err != nil {
			log.Fatal(err)
		}
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { kms.HandleRequest(w, r, keys) })
	log.Fatal(http.ListenAndServe(address, nil))
}

// restore reads a key as the server's own program reads it from a file of keys.
func restore(keys *data.Database, id, file string) error {
	pem, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(map[string]any{
		"Metadata":      map[string]string{"KeyId": id, "KeyUsage": "SIGN_VERIFY"},
		"PrivateKeyPem": string(pem),
	})
	if err != nil {
		return err
	}
	key := cmk.EccKey{}
	if err := yaml.Unmarshal(text, &key); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return keys.SaveKey(&key)
}
